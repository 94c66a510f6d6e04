#!lua flags=no-writes
--- List the live servers of a queue with their capacity and the seats taken.
--- KEYS     1 meta (hash)   2 policy (hash)   3 seats (zset)   4 servers (hash)   5 leases (zset)
--- ARGV     1 context
--- RETURNS  for each server: id, address, capacity, most, sessions, holds, draining, reported
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--@include live_servers
local meta, policy, seats, servers, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context = ARGV[1]

local queue = open_queue({ meta = meta, policy = policy, seats = seats, servers = servers, leases = leases }, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
local replies = {}
for _, server in ipairs(live_servers(queue)) do
  local inside = seats_of(queue, server.id, 's')
  replies[#replies + 1] = {
    server.id, server.address, server.capacity, server.most, inside, seats_of(queue, server.id) - inside,
    server.draining and 1 or 0, server.reported and 1 or 0,
  }
end
return replies
