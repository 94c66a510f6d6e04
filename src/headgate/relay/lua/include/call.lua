--- Notifies waiters whose time has become known, in the order of their line or of the users' turns.
--@include hint
--@include room
--@include waiter_record
local CALLS = 16

--- Notify the waiters at the front of the time at which they may go. The number notified is kept, so that each script
--- continues where the last one stopped; `from` says that waiters behind that rank must be notified again.
local function notify_from(pool, from, length, waiter_at, events)
  local changed = pool.policy ~= pool.version
  local known = math.max(0, math.min(known_of(pool), length, pool.probe and 1 or length))
  local called = math.max(0, math.min(pool.called, changed and 0 or from or known, known))
  for rank = called, math.min(known, called + CALLS) - 1 do
    local waiter = waiter_at(rank)
    if waiter then
      hint(events, 'turn ' .. waiter .. ' ' .. text_of(wait_of(pool, rank + units_of(waiter))))
    end
    called = rank + 1
  end
  if changed or tostring(called) ~= pool.told then
    redis.call('HSET', pool.state, 'called', called, 'policy', pool.version)
  end
end

local function notify_line(keys, own, from)
  local length = redis.call('ZCARD', keys.line)
  if length == 0 and (own.called == 0 or not own.told) then
    return
  end
  notify_from(own, keys.dropped and 0 or from, length, function(rank)
    return redis.call('ZRANGE', keys.line, rank, rank)[1]
  end, keys.events)
end

local function notify_turns(keys, shared, from)
  if shared.none then
    return
  end
  notify_from(shared, from, redis.call('ZCARD', keys.turns), function(rank)
    local user = redis.call('ZRANGE', keys.turns, rank, rank)[1]
    return user and redis.call('HGET', keys.heads, user)
  end, keys.events)
end

local function notify_waiters(keys, own, shared)
  notify_line(keys, own)
  notify_turns(keys, shared)
end
