#!lua flags=allow-oom
--- A server leaves: with drain it only takes nobody new; without, its lease is over and the next tick clears it.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 server   3 drain
--- RETURNS  1 if it was known, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: who left stays gone
--@include moves
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context, id, drain = ARGV[1], ARGV[2], ARGV[3] == '1'

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refusal
end
local server = read_server(queue, id)
if not server then
  return 0
end
server.draining = true
write_server(queue, server)
if not drain then
  redis.call('ZADD', leases, 0, id)
end
count(queue, drain and 'servers_drained' or 'servers_removed', 1)
close_queue(queue)
return 1
