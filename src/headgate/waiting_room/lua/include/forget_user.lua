--- Removes users whose stay has ended.
--@include user_record

--- Delete the record of a user in a final state, and the ticket.
local function forget_user(queue, id)
  local user = read_user(queue.keys.users, id)
  redis.call('ZREM', queue.keys.finished, id)
  if user and string.find('EFLB', user.state, 1, true) then
    if user.ticket ~= '' then
      redis.call('HDEL', queue.keys.tickets, user.ticket)
    end
    redis.call('HDEL', queue.keys.users, id)
  end
end
