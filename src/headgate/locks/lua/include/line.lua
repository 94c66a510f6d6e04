--- The line in front of a lock: who waits (by place), for which process each waits, and how many each process has.
--@include hint
--@include emit
--@include text_of
local KEPT_EVENTS = 100

local function leave_line(line, waiters, owners, holder)
  if redis.call('ZREM', line, holder) == 0 then
    return 0
  end
  local owner = redis.call('HGET', waiters, holder)
  redis.call('HDEL', waiters, holder)
  if owner and redis.call('HINCRBY', owners, owner, -1) <= 0 then
    redis.call('HDEL', owners, owner)
  end
  return 1
end

--- Tell the first in line that it is its turn, and the second to come if the first does not.
local function call_head(lock, line, events, announce)
  local first = redis.call('ZRANGE', line, 0, 1)
  if first[1] or announce then
    hint(events, 'free ' .. text_of(lock.now) .. ' ' .. (first[1] or '-') .. ' ' .. (first[2] or '-'))
  end
end

local function note_loss(lock, events, kind, ...)
  emit(events, KEPT_EVENTS, 'kind', kind, 'fence', lock.fence, 'at', text_of(lock.raw), ...)
end
