--- The users' turns at the limits that they share: each user takes part with the first waiter of their line.
--@include upstream

--- Add a user to the turns, or take them out: `place` is a number, or nil to keep the present turn.
local function take_turn(keys, user, wants, place)
  local head = wants and redis.call('ZRANGE', keys.line, 0, 0)[1]
  if not head then
    redis.call('ZREM', keys.turns, user)
    redis.call('HDEL', keys.heads, user)
    return
  end
  redis.call('HSET', keys.heads, user, head)
  if place then
    redis.call('ZADD', keys.turns, text_of(place), user)
  end
end
