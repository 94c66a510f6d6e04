#!lua flags=allow-oom
--- Give up a place, or a ticket with its seat, or a session without a server; leaving twice is leaving once.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 user   3 proven
--- RETURNS  1 if there was something to give up, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST FORBIDDEN
--- AGAIN    same answer: who has left stays gone
--@include moves
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context, id, proven = ARGV[1], ARGV[2], ARGV[3] == '1'

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refusal
end
local user = read_user(users, id)
if not user then
  return 0
end
if user.account == 1 and not proven then
  return { err = 'FORBIDDEN An account needs a service token or the place token.' }
end
local session = user.state == 'A' and read_session(queue, user.session)
if user.state == 'W' then
  redis.call('ZREM', waiting, id)
elseif user.state == 'Y' then
  redis.call('ZREM', away, id)
elseif user.state == 'P' then
  free_hold(queue, user)
elseif user.state == 'K' then
  free_kept(queue, user)
elseif session and session.server == '' then
  end_session(queue, session, false)
else
  return 0
end
finish(queue, user, 'L')
count(queue, 'left', 1)
close_queue(queue)
hint(events, 'changed ' .. id)
return 1
