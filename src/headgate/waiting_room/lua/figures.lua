#!lua flags=no-writes
--- Read a queue's policy and version, its switches, and its figures.
--- KEYS     group queue
--- ARGV     1 context
--- RETURNS  json, version, generation, epoch, paused, draining, waiting, away, holds, sessions, kept, servers,
---          capacity, rate, serving, offset_ms (of its clock), ahead_ms (its numbers, of that), then name, total, …
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--@include live_servers
--@include recent_calls
--@include queue_keys
local context = ARGV[1]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
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
