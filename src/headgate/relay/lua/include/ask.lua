--- Grants a permit, or adds the waiter to its user's line and says when to ask again. `acquire` does it for all
--- waiters; `acquire_again` for those who have a place already, while the store is out of memory.
--@include pools
--@include turns
--@include call
--@include backlog
--@include line

--- Count the units wanted by waiters ahead in the line, and drop those of dead processes; false if there are too many.
local function units_ahead(keys, thing, waiter)
  local rank = redis.call('ZRANK', keys.line, waiter)
  if not rank or rank >= MOST_AHEAD then
    return false
  end
  local units = 0
  if rank > 0 then
    for _, other in ipairs(redis.call('ZRANGE', keys.line, 0, rank - 1)) do
      if alive(keys.relays, thing, other) then
        units = units + units_of(other)
      else
        leave_line(keys, other)
        keys.dropped = true
      end
    end
  end
  return units
end

local function take_units(pool, waiter, lease_at)
  for n = 1, units_of(waiter) do
    local unit = waiter .. '/' .. n
    redis.call('ZADD', pool.fly, text_of(lease_at), unit)
    if pool.concurrent then
      redis.call('ZADD', pool.open, text_of(lease_at), unit)
    end
  end
  pool.flying = pool.flying + units_of(waiter)
  if pool.probe then
    pool.probe = waiter
    redis.call('HSET', pool.state, 'probe', waiter)
  end
end

--- Count the units wanted by the users whose turn at the shared limits is earlier; those of dead processes lose it.
local function turns_ahead(keys, thing, user)
  local rank = redis.call('ZRANK', keys.turns, user) or redis.call('ZCARD', keys.turns)
  if rank >= MOST_AHEAD then
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

local function ask_for_permit(keys, context, user, waiter, place, wait_ms, most, lease_ms)
  local policy = read_policy(keys.policy, user)
  if not policy.version or policy.gone then
    return redis.error_reply('UPSTREAM_UNKNOWN There is no upstream of this name; its operator can add it.')
  end
  local units = units_of(waiter)
  local thing = open_upstream(keys.meta, policy, context)
  local own, shared = open_pools(keys, policy, thing)
  if units > math.min(capacity_of(own), capacity_of(shared)) then
    return redis.error_reply('COST_TOO_HIGH One request may not cost more permits than the limit has.')
  end
  tidy_pool(own, thing, lease_ms)
  tidy_pool(shared, thing, lease_ms)

  local function answer(how, position, ms, exact, room)
    schedule_user(keys, own, user)
    close_thing(thing)
    return { how, text_of(place), position, text_of(ms), exact and 1 or 0, room, capacity_of(own) - room, thing.epoch,
      policy.version }
  end

  local lease = own.flying > 0 and redis.call('ZSCORE', keys.fly, waiter .. '/1')
  if lease then
    return answer(1, 0, tonumber(lease) - thing.now, true, room_of(own))
  end

  local length, jobs = redis.call('ZCARD', keys.line), redis.call('ZCARD', keys.backlog)
  if length > 0 then
    drop_expired(keys, thing, CALLS)
  end
  local standing = length > 0 and redis.call('ZSCORE', keys.line, waiter)
  if standing then
    place = tonumber(standing)
  elseif place == 0 then
    if length + jobs >= most and length + jobs_before(keys.backlog, keys.line) >= most then
      return answer(3, most, wait_of(own, most + units), false, 0)
    end
    place = next_number(thing)
  end
  local alone = length == 0
  if not alone and not standing then
    join_line(keys, waiter, place)
  end
  local ahead = alone and 0 or units_ahead(keys, thing, waiter)
  local jobs_ahead, job_units = awaited_jobs(keys, thing, place, jobs)
  ahead = ahead and ahead + job_units
  local room = thing.holding and 0 or room_of(own)
  local own_turn = ahead and room >= ahead + units and not (own.probe and ahead > 0)
  local granted = own_turn
  if own_turn and not shared.none then
    local others = turns_ahead(keys, thing, user)
    granted = others and room_of(shared) >= others + units and not (shared.probe and others > 0)
  end

  if granted then
    local left = own.probe and 0 or room - units
    if not alone then
      leave_line(keys, waiter)
    end
    take_units(own, waiter, thing.now + lease_ms)
    if not shared.none then
      take_units(shared, waiter, thing.now + lease_ms)
      shared.called = shared.called - (redis.call('ZSCORE', keys.turns, user) and 1 or 0)
      take_turn(keys, user, left > 0, next_number(thing))
    end
    begin_job(keys, user, jobs > 0 and place, thing.now)
    own.called = own.called - (alone and 0 or 1)
    notify_waiters(keys, own, shared)
    return answer(1, 0, lease_ms, true, left)
  end

  if alone then
    join_line(keys, waiter, place)
  end
  redis.call('ZADD', keys.relays, text_of(thing.now), process_of(waiter))
  local rank = redis.call('ZRANK', keys.line, waiter)
  local wanted = (ahead or rank + job_units) + units
  rank = rank + jobs_ahead
  local wait = math.max(thing.hold - thing.now, wait_of(own, wanted))
  local exact = wanted <= known_of(own) and not (own.probe and rank > 0)
  if not shared.none then
    if own_turn or room < 1 then
      take_turn(keys, user, room >= 1, not redis.call('ZSCORE', keys.turns, user) and next_number(thing) or nil)
    end
    local users = math.max(1, redis.call('ZCARD', keys.turns))
    local turn = redis.call('ZRANK', keys.turns, user) or users - 1
    local nth = turn + units + rank * users
    wait = math.max(wait, wait_of(shared, nth))
    exact = exact and own_turn and nth <= known_of(shared) and not (shared.probe and turn > 0)
  end
  notify_waiters(keys, own, shared)
  if wait > wait_ms then
    leave_line(keys, waiter)
    return answer(2, rank + 1, wait, exact, math.max(0, room))
  end
  redis.call('ZADD', keys.patience, text_of(thing.now + wait_ms), waiter)
  return answer(0, rank + 1, wait, exact, math.max(0, room))
end
