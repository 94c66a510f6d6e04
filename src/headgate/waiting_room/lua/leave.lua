#!lua flags=allow-oom
--- Give up a place, or a ticket with its seat, or a session without a server; leaving twice is leaving once.
--- KEYS     group queue
--- ARGV     1 context   2 user   3 proven
--- RETURNS  1 if there was something to give up, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST FORBIDDEN
--- AGAIN    same answer: a user who left stays gone
--@include free_seat
--@include end_session
--@include queue_keys
local context, id, proven = ARGV[1], ARGV[2], ARGV[3] == '1'

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
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
local session = user.state == 'A' and read_session(sessions, user.session)
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
