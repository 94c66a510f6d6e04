--- Ends sessions.
--@include finish
--@include seat_record
--@include session_record

--- Remove a session and its seat; gives the user who is inside by it, or nil.
local function remove_session(queue, session)
  redis.call('HDEL', queue.keys.sessions, session.id)
  redis.call('ZREM', queue.keys.seats, seat(session.server, 's', session.id))
  redis.call('ZREM', queue.keys.stays, session.id)
  local user = session.user ~= '' and read_user(queue.keys.users, session.user) or nil
  return user and user.state == 'A' and user.session == session.id and user or nil
end

--- End a session; `dropped` keeps its seat for the owner to come back to.
local function end_session(queue, session, dropped)
  local user = remove_session(queue, session)
  if not user then
    return
  end
  if dropped and queue.reentry_ms > 0 then
    user.state, user.server = 'K', session.server
    write_user(queue.keys.users, user)
    redis.call('ZADD', queue.keys.kept, text_of(queue.time + queue.reentry_ms), user.id)
    redis.call('ZADD', queue.keys.seats, 0, seat(user.server, 'k', user.id))
  else
    finish(queue, user, 'F')
    count(queue, 'finished', 1)
  end
end
