#!lua flags=allow-oom
--- End somebody's pass everywhere: gates refuse it from now on, and the seat is free. They may stand in line again.
--- KEYS     1 meta (hash)   2 policy (hash)   3 users (hash)   4 tickets (hash)   5 holds (zset ticket -> deadline)
---          6 seats (zset server:kind:id)   7 kept (zset user -> deadline)   8 finished (zset user -> ms)   9 sessions (hash)
---          10 stays (zset session -> deadline)   11 events (stream)   12 traces (hash)   13 revoked (zset user -> ms when)
---          14 audit (stream)
--- ARGV     1 context   2 user   3 who   4 most (revoked passes that a gate knows of)
--- RETURNS  1 if a session was ended, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST REVOCATIONS_FULL
--- AGAIN    same answer: a revoked pass stays revoked
--@include moves
local meta, policy, users, tickets, holds, seats, kept = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local finished, sessions, stays, events, traces = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local revoked, audit = KEYS[13], KEYS[14]
local context, id, who, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local AUDIT_KEPT = 1000
local MOST_FORGOTTEN = 100

local queue = open_queue({
  meta = meta, policy = policy, users = users, tickets = tickets, holds = holds, seats = seats, kept = kept,
  finished = finished, sessions = sessions, stays = stays, events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refusal
end
local before = '(' .. text_of(queue.now - queue.session_ms)
local ended_passes = redis.call('ZRANGEBYSCORE', revoked, '-inf', before, 'LIMIT', 0, MOST_FORGOTTEN)
if #ended_passes > 0 then
  redis.call('ZREM', revoked, unpack(ended_passes))
end
if redis.call('ZCARD', revoked) >= most and not redis.call('ZSCORE', revoked, id) then
  return { err = 'REVOCATIONS_FULL' }
end
redis.call('ZADD', revoked, text_of(queue.now), id)
local user = read_user(users, id)
local ended = 0
if user and user.state == 'A' then
  local session = read_session(queue, user.session)
  if session then
    end_session(queue, session, false)
    ended = 1
  end
end
close_queue(queue)
emit(audit, AUDIT_KEPT, 'at', text_of(queue.now), 'who', who, 'action', 'revoke', 'old', '{}',
  'new', '{"userId":"' .. id .. '"}')
hint(events, 'gate')
return ended
