#!lua flags=allow-oom
--- End sessions and free their seats; one that was dropped keeps its seat for a while, for its owner to come back to.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2.. session, instance, reason
--- RETURNS  for each session: 1 if it was inside, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: a session that ended stays ended
--@include moves
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context = ARGV[1]

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refuse_all(refusal, 2, #ARGV, 3)
end
local replies = {}
for i = 2, #ARGV, 3 do
  local id, instance, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local session = read_session(queue, id)
  local known = session and (instance == '' or session.server == '' or session.server == instance)
  if known then
    end_session(queue, session, reason == 'dropped')
  end
  replies[#replies + 1] = known and 1 or 0
end
close_queue(queue)
return replies
