#!lua flags=allow-oom
--- End sessions and free their seats; one that was dropped keeps its seat for a while, for its owner to come back to.
--- KEYS     group queue
--- ARGV     1 context   2.. session, instance, reason
--- RETURNS  for each session: 1 if it was inside, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: a session that ended stays ended
--@include end_session
--@include queue_keys
local context = ARGV[1]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_all(refusal, 2, #ARGV, 3)
end
local replies = {}
for i = 2, #ARGV, 3 do
  local id, instance, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local session = read_session(sessions, id)
  local known = session and (instance == '' or session.server == '' or session.server == instance)
  if known then
    end_session(queue, session, reason == 'dropped')
  end
  replies[#replies + 1] = known and 1 or 0
end
close_queue(queue)
return replies
