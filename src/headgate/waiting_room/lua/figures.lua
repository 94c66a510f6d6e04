#!lua flags=no-writes
--- Show how a queue stands: its policy and version, its switches, and its numbers.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset)   4 holds (zset)   5 seats (zset)   6 away (zset)
---          7 sessions (hash)   8 servers (hash)   9 leases (zset)   10 kept (zset)
--- ARGV     1 context
--- RETURNS  json, version, generation, epoch, paused, draining, waiting, away, holds, sessions, kept, servers,
---          capacity, rate, serving, offset_ms (of its clock), ahead_ms (its numbers, of that), then name, total, …
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--@include placement
local meta, policy, waiting, holds, seats, away = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local sessions, servers, leases, kept = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local context = ARGV[1]

local queue = open_queue({ meta = meta, policy = policy, seats = seats, servers = servers, leases = leases }, context)
local refusal = unknown(queue)
if refusal then
  return refusal
end
local capacity, alive = 0, live_servers(queue)
for _, server in ipairs(alive) do
  if server.reported and not server.draining then
    capacity = capacity + server.capacity
  end
end
if queue.capacity then
  capacity = queue.fixed and queue.capacity or math.min(capacity, queue.capacity)
end
local reply = {
  redis.call('HGET', policy, 'json'), tonumber(queue.version), queue.generation, queue.epoch, queue.paused and 1 or 0,
  queue.draining and 1 or 0, redis.call('ZCARD', waiting), redis.call('ZCARD', away), redis.call('ZCARD', holds),
  redis.call('HLEN', sessions), redis.call('ZCARD', kept), #alive, capacity, math.floor(flow(queue) * 1000000),
  queue.serving, queue.thing.offset, math.ceil(math.max(0, queue.thing.last - queue.thing.us) / 1000),
}
local totals = { 'entered', 'admitted', 'issued', 'expired', 'abandoned', 'redeemed', 'finished', 'left', 'moved' }
for _, name in ipairs(totals) do
  reply[#reply + 1] = name
  reply[#reply + 1] = tonumber(redis.call('HGET', meta, name .. '_total') or 0)
end
return reply
