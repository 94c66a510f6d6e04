--- A pool: limits, and the units that use them. One pool is a user's, another is shared by all users of an upstream.
---
--- A unit is in flight from its grant until the response, then in the log of responses. A window (N, W) has room while
--- units in flight + responses in the last W < N; that is the whole rule. A bucket is charged at the response and
--- drains at its rate; units in flight count as if they arrived now. Both are safe wherever between send and response
--- the request really arrived. What was granted and never reported counts as answered when its lease ends.
--@include text_of
local REAP = 64
local KEEP_MS = 10000

local function read_rules(text)
  local rules = {}
  for kind, count, ms, burst in string.gmatch(text or '', '(%a) (%d+) (%d+) (%d+);') do
    rules[#rules + 1] = { kind = kind, count = tonumber(count), ms = tonumber(ms), burst = tonumber(burst) }
  end
  return rules
end

--- A pool without rules stays closed, unless it is needed `always` to know who has a permit.
local function open_pool(rules, fly, done, open, state, now, always)
  local pool = { rules = rules, fly = fly, done = done, open = open, state = state, now = now, keep = KEEP_MS }
  if #rules == 0 and not always then
    pool.none, pool.pause, pool.flying, pool.busy = true, 0, 0, 0
    return pool
  end
  local fields = { 'pause', 'probe', 'step', 'called', 'policy' }
  for index, rule in ipairs(rules) do
    if rule.kind == 'c' then
      pool.concurrent = true
    else
      local refill = rule.kind == 'b' and rule.burst * rule.ms / rule.count or rule.ms
      pool.keep = math.max(pool.keep, refill)
    end
    fields[#fields + 1], fields[#fields + 2] = 'level' .. index, 'at' .. index
  end
  local saved = redis.call('HMGET', state, unpack(fields))
  pool.pause, pool.probe, pool.step = tonumber(saved[1] or 0), saved[2], tonumber(saved[3] or 0)
  pool.called, pool.told, pool.policy = tonumber(saved[4] or 0), saved[4], saved[5]
  for index, rule in ipairs(rules) do
    rule.level, rule.at = tonumber(saved[4 + index * 2] or 0), tonumber(saved[5 + index * 2] or 0)
  end
  pool.flying = redis.call('ZCARD', fly)
  pool.busy = pool.concurrent and redis.call('ZCARD', open) or 0
  return pool
end

local function level_now(pool, rule)
  return math.max(0, rule.level - math.max(0, pool.now - rule.at) * rule.count / rule.ms)
end

--- Note that one unit was answered at `moment`; told again, only the later moment counts.
local function answer_unit(pool, unit, moment)
  local flew = redis.call('ZREM', pool.fly, unit) == 1
  local known = redis.call('ZSCORE', pool.done, unit)
  redis.call('ZADD', pool.done, 'GT', text_of(moment), unit)
  if flew then
    pool.flying = pool.flying - 1
  end
  if flew or not known then
    for index, rule in ipairs(pool.rules) do
      if rule.kind == 'b' then
        rule.level, rule.at = level_now(pool, rule) + 1, pool.now
        redis.call('HSET', pool.state, 'level' .. index, string.format('%.6f', rule.level),
          'at' .. index, text_of(rule.at))
      end
    end
  end
end

--- Forget old responses; take units whose lease has ended for answered at that moment. Not while the clock is in doubt:
--- after a step of the clock, leases begin anew.
local function tidy_pool(pool, thing, lease_ms)
  if pool.none then
    return
  end
  if thing.step ~= pool.step then
    redis.call('HSET', pool.state, 'step', text_of(thing.step))
    for _, key in ipairs({ pool.fly, pool.open }) do
      for _, unit in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        redis.call('ZADD', key, 'GT', text_of(pool.now + lease_ms), unit)
      end
    end
  end
  if thing.holding then
    return
  end
  local ended = pool.flying > 0
    and redis.call('ZRANGEBYSCORE', pool.fly, '-inf', text_of(pool.now), 'WITHSCORES', 'LIMIT', 0, REAP) or {}
  for i = 1, #ended, 2 do
    answer_unit(pool, ended[i], tonumber(ended[i + 1]))
  end
  if pool.concurrent then
    pool.busy = pool.busy - redis.call('ZREMRANGEBYSCORE', pool.open, '-inf', text_of(pool.now))
  end
  redis.call('ZREMRANGEBYSCORE', pool.done, '-inf', '(' .. text_of(pool.now - pool.keep))
end

--- How many answers are at most W old: one that is exactly so old still counts, which also covers the rounding to ms.
local function cooling(pool, rule)
  return redis.call('ZCOUNT', pool.done, text_of(pool.now - rule.ms), '+inf')
end

--- How many units may be granted now.
local function room_of(pool)
  local room = pool.probe and 1 - pool.flying or 1000000
  for _, rule in ipairs(pool.rules) do
    local free
    if rule.kind == 'w' then
      free = rule.count - pool.flying - cooling(pool, rule)
    elseif rule.kind == 'b' then
      free = math.floor(rule.burst - level_now(pool, rule) - pool.flying + 0.000001)
    else
      free = rule.count - pool.busy
    end
    room = math.min(room, free)
  end
  return pool.now < pool.pause and 0 or room
end

--- For how many units, counted from the first, the time is known because it waits for no answer.
local function known_of(pool)
  local known = pool.probe and 1 - pool.flying or 1000000
  for _, rule in ipairs(pool.rules) do
    local most = rule.burst > 0 and rule.burst or rule.count
    known = math.min(known, most - (rule.kind == 'c' and pool.busy or pool.flying))
  end
  return known
end

--- The most units that can ever be granted at once.
local function capacity_of(pool)
  local most = 1000000
  for _, rule in ipairs(pool.rules) do
    most = math.min(most, rule.burst > 0 and rule.burst or rule.count)
  end
  return most
end

--- Milliseconds until the n-th unit from now can be granted: exact up to known_of, else the least that it can be.
local function wait_of(pool, n)
  local wait = math.max(0, pool.pause - pool.now)
  for _, rule in ipairs(pool.rules) do
    local least = 0
    if rule.kind == 'w' then
      local cycle, index = math.floor((n - 1) / rule.count), (n - 1) % rule.count
      local cold = cooling(pool, rule)
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

local function units_of(waiter)
  return tonumber(string.match(waiter, '%.(%d+)$'))
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
  pool.busy = pool.busy + (pool.concurrent and units_of(waiter) or 0)
end
