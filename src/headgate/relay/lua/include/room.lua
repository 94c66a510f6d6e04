--- Computes the room of a pool: units that may be granted now, units whose time is known, and how long the others wait.
--@include pool

--- Count the units whose answer has not ended; those granted under another kind of limit count while in flight.
local function open_units(pool)
  local both = pool.flying > 0 and redis.call('ZINTERCARD', 2, pool.fly, pool.open) or 0
  return redis.call('ZCARD', pool.open) + pool.flying - both
end

--- Count the answers of the last W: one that is exactly so old still counts, which also covers the rounding to ms.
local function recent_answers(pool, rule)
  return redis.call('ZCOUNT', pool.done, text_of(pool.now - rule.ms), '+inf')
end

--- Count the units that may be granted now; after a refusal none while a request is in flight, because one goes first.
local function room_of(pool)
  local room = pool.probe and pool.flying > 0 and 0 or 1000000
  for _, rule in ipairs(pool.rules) do
    local free
    if rule.kind == 'w' then
      free = rule.count - pool.flying - recent_answers(pool, rule)
    elseif rule.kind == 'b' then
      free = math.floor(rule.burst - level_now(pool, rule) - pool.flying + 0.000001)
    else
      free = rule.count - open_units(pool)
    end
    room = math.min(room, free)
  end
  return pool.now < pool.pause and 0 or room
end

--- Count the units, from the first, whose time is known because it depends on no answer.
local function known_of(pool)
  local known = pool.probe and pool.flying > 0 and 0 or 1000000
  for _, rule in ipairs(pool.rules) do
    local most = rule.burst > 0 and rule.burst or rule.count
    known = math.min(known, most - (rule.kind == 'c' and open_units(pool) or pool.flying))
  end
  return known
end

--- Give the most units that can ever be granted at once.
local function capacity_of(pool)
  local most = 1000000
  for _, rule in ipairs(pool.rules) do
    most = math.min(most, rule.burst > 0 and rule.burst or rule.count)
  end
  return most
end

--- Give the milliseconds until the n-th unit from now can be granted: exact up to known_of, else a lower bound.
local function wait_of(pool, n)
  local wait = math.max(0, pool.pause - pool.now)
  for _, rule in ipairs(pool.rules) do
    local least = 0
    if rule.kind == 'w' then
      local cycle, index = math.floor((n - 1) / rule.count), (n - 1) % rule.count
      local cold = recent_answers(pool, rule)
      local free = rule.count - pool.flying - cold
      local since = text_of(pool.now - rule.ms)
      if index >= free + cold then
        least = rule.ms
      elseif index >= free then
        local entry = redis.call('ZRANGEBYSCORE', pool.done, since, '+inf', 'WITHSCORES', 'LIMIT', index - free, 1)
        least = tonumber(entry[2]) + rule.ms + 1 - pool.now
      end
      least = least + cycle * rule.ms
    elseif rule.kind == 'b' then
      local over = level_now(pool, rule) + pool.flying + n - rule.burst
      least = math.ceil(math.max(0, over) * rule.ms / rule.count)
    end
    wait = math.max(wait, least)
  end
  return wait
end
