#!lua flags=allow-oom
--- Renew sessions that have no server, for as long as their owners are still about.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2.. session
--- RETURNS  for each session: user, left_ms
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST SESSION_UNKNOWN
--- AGAIN    same answer: renewed from now
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
  return refuse_all(refusal, 2, #ARGV, 1)
end
local replies = {}
for i = 2, #ARGV do
  local session = read_session(queue, ARGV[i])
  local deadline = session and tonumber(redis.call('ZSCORE', stays, session.id) or 0)
  if not session or (session.server == '' and deadline <= queue.time) then
    replies[#replies + 1] = { err = 'SESSION_UNKNOWN' }
  else
    if session.server == '' then
      redis.call('ZADD', stays, 'XX', text_of(queue.time + queue.session_ms), session.id)
    end
    replies[#replies + 1] = { session.user, queue.session_ms }
  end
end
close_queue(queue)
return replies
