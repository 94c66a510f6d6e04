#!lua flags=allow-oom
--- End a user's pass everywhere: gates refuse it from now on, and the seat is free. The user may enter again.
--- KEYS     group queue   17 revoked (zset user -> ms when)   18 audit (stream)
--- ARGV     1 context   2 user   3 who   4 most (revoked passes that a gate knows of)
--- RETURNS  1 if a session was ended, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST REVOCATIONS_FULL
--- AGAIN    same answer: a revoked pass stays revoked
--@include end_session
--@include queue_keys
local revoked, audit = KEYS[17], KEYS[18]
local context, id, who, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local AUDIT_KEPT = 1000
local MOST_FORGOTTEN = 100

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
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
  local session = read_session(sessions, user.session)
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
