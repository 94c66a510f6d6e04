#!lua flags=allow-oom
--- Renew sessions that have no server, whose owners are still active.
--- KEYS     group queue
--- ARGV     1 context   2.. session
--- RETURNS  for each session: user, left_ms
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST SESSION_UNKNOWN
--- AGAIN    same answer: renewed from now
--@include queue
--@include session_record
--@include queue_keys
local context = ARGV[1]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_all(refusal, 2, #ARGV, 1)
end
local replies = {}
for i = 2, #ARGV do
  local session = read_session(sessions, ARGV[i])
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
