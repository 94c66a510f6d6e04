--- A user's line at an upstream.
---
--- Waiters of dead processes are passed over at once, and the next sweep takes them out of their lines. `crowd` counts
--- the waiters of each process by user, so that they are found. A process that comes back shows their places.
--@include upstream
--@include crowd_record

local function join_line(keys, waiter, place)
  if redis.call('ZADD', keys.line, text_of(place), waiter) == 1 then
    redis.call('HINCRBY', keys.crowd, crowd_field(process_of(waiter), keys.owner), 1)
  end
end

local function leave_line(keys, waiter)
  redis.call('ZREM', keys.patience, waiter)
  if redis.call('ZREM', keys.line, waiter) == 1 then
    local field = crowd_field(process_of(waiter), keys.owner)
    if redis.call('HINCRBY', keys.crowd, field, -1) <= 0 then
      redis.call('HDEL', keys.crowd, field)
    end
  end
end

--- Take waiters whose time to wait is over out of the line, at most `most` of them.
local function drop_expired(keys, thing, most)
  for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', keys.patience, '-inf', text_of(thing.now), 'LIMIT', 0, most)) do
    leave_line(keys, waiter)
  end
end
