--- The users' turns at the limits that they share: each stands in the round with the first waiter of their line.
--@include text_of
--@include line

--- Count the units wanted by the users whose turn at the shared limits comes before this one's.
local function turns_ahead(keys, thing, user)
  local rank = redis.call('ZRANK', keys.turns, user) or redis.call('ZCARD', keys.turns)
  if rank >= LOOK then
    return false
  end
  local units = 0
  if rank > 0 then
    for _, other in ipairs(redis.call('ZRANGE', keys.turns, 0, rank - 1)) do
      local head = redis.call('HGET', keys.heads, other)
      if head and alive(keys.relays, thing, head) then
        units = units + units_of(head)
      else
        redis.call('ZREM', keys.turns, other)
        redis.call('HDEL', keys.heads, other)
      end
    end
  end
  return units
end

--- Stand in the round of users, or leave it: `place` is a number, or nil to keep the turn one has.
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
