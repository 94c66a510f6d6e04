--- The line of waiters of a lock, by place, and how many waiters each process has.
--@include hint
--@include emit
--@include text_of
--@include waiter_record
local KEPT_EVENTS = 100

local function leave_line(line, waiters, owners, holder)
  if redis.call('ZREM', line, holder) == 0 then
    return 0
  end
  local owner = read_waiter(waiters, holder)
  redis.call('HDEL', waiters, holder)
  if owner and redis.call('HINCRBY', owners, owner, -1) <= 0 then
    redis.call('HDEL', owners, owner)
  end
  return 1
end

local function join_line(line, waiters, owners, holder, place, owner, record)
  redis.call('ZADD', line, place, holder)
  redis.call('HSET', waiters, holder, record)
  redis.call('HINCRBY', owners, owner, 1)
end

--- Publish that the lock is taken, and for how long; waiters with a lower place were passed over.
local function publish_taken(lock, events, opens_in_ms, place)
  hint(events, 'taken ' .. text_of(lock.now) .. ' ' .. text_of(opens_in_ms) .. ' ' .. place)
end

--- Publish that the lock is free: the first in line may take it, and the second if the first does not come.
local function publish_free(lock, line, events, announce)
  local first = redis.call('ZRANGE', line, 0, 1)
  if first[1] or announce then
    hint(events, 'free ' .. text_of(lock.now) .. ' ' .. (first[1] or '-') .. ' ' .. (first[2] or '-'))
  end
end

local function record_loss(lock, events, kind, ...)
  emit(events, KEPT_EVENTS, 'kind', kind, 'fence', lock.fence, 'at', text_of(lock.raw), ...)
end
