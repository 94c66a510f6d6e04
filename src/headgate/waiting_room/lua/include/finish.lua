--- Ends a user's stay in the queue.
--@include queue
--@include user_record

--- Write a final state; status can be asked for a while.
local function finish(queue, user, state)
  user.state = state
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.finished, text_of(queue.now + queue.finished_ms), user.id)
  redis.call('HDEL', queue.keys.traces, user.id)
end
