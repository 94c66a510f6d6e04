--- The line in front of a lock: who waits (by place), for which process, in which request and on which terms each waits, and
--- how many each process has. Who has terms may be given the lock by a release of its own process.
--@include hint
--@include emit
--@include text_of
local KEPT_EVENTS = 100

local function owner_of(waiters, holder)
  return string.match(redis.call('HGET', waiters, holder) or '', '^%S+')
end

local function request_of(waiters, holder)
  return string.match(redis.call('HGET', waiters, holder) or '', '^%S+ (%S+)')
end

local function leave_line(line, waiters, owners, holder)
  if redis.call('ZREM', line, holder) == 0 then
    return 0
  end
  local owner = owner_of(waiters, holder)
  redis.call('HDEL', waiters, holder)
  if owner and redis.call('HINCRBY', owners, owner, -1) <= 0 then
    redis.call('HDEL', owners, owner)
  end
  return 1
end

local function join_line(line, waiters, owners, holder, place, owner, terms)
  redis.call('ZADD', line, place, holder)
  redis.call('HSET', waiters, holder, owner .. terms)
  redis.call('HINCRBY', owners, owner, 1)
end

--- Write down on which terms a waiter would take the lock, and read them again: ttl_ms, delay_ms, label, request, or nothing.
local function terms_of(request, handed, ttl_ms, delay_ms, label)
  return ' ' .. request .. (handed and string.format(' %.0f %.0f %s', ttl_ms, delay_ms, label) or '')
end

local function read_terms(waiters, holder, owner)
  local whose, request, ttl_ms, delay_ms, label =
    string.match(redis.call('HGET', waiters, holder) or '', '^(%S+) (%S+) (%d+) (%d+) (.*)$')
  if whose == owner then
    return tonumber(ttl_ms), tonumber(delay_ms), label, request
  end
end

--- Tell those who wait that somebody has the lock, and until when; whoever has a lower place was passed over.
local function tell_taken(lock, events, opens_in_ms, place)
  hint(events, 'taken ' .. text_of(lock.now) .. ' ' .. text_of(opens_in_ms) .. ' ' .. place)
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
