--- A pool: limits, and the units that use them. One pool is a user's, another is shared by all users of an upstream.
---
--- A unit is in flight from its grant until the response, then in the log of responses. A window (N, W) has room while
--- units in flight + responses in the last W < N; that is the whole rule. A bucket is charged at the response and
--- drains at its rate; units in flight count as if they arrived now. Both are safe wherever between send and response
--- the request really arrived. A unit that was granted and never reported counts as answered when its lease ends.
--@include text_of
--@include rules_record
local REAP = 64
local KEEP_MS = 10000

--- Open a pool. One without rules stays closed, unless it is needed `always` to know who has a permit.
local function open_pool(rules, fly, done, open, state, now, always)
  local pool = { rules = rules, fly = fly, done = done, open = open, state = state, now = now, keep = KEEP_MS }
  if #rules == 0 and not always then
    pool.none, pool.pause, pool.flying = true, 0, 0
    return pool
  end
  local fields = { 'pause', 'probe', 'step', 'called', 'policy', 'refusals', 'shape', 'trip' }
  for index, rule in ipairs(rules) do
    if rule.kind == 'c' then
      pool.concurrent = true
    else
      rule.memory = rule.kind == 'b' and rule.burst * rule.ms / rule.count or rule.ms
      pool.keep = math.max(pool.keep, rule.memory)
    end
    fields[#fields + 1], fields[#fields + 2] = 'level' .. index, 'at' .. index
  end
  local saved = redis.call('HMGET', state, unpack(fields))
  pool.pause, pool.probe, pool.step = tonumber(saved[1] or 0), saved[2], tonumber(saved[3] or 0)
  pool.called, pool.told, pool.policy = tonumber(saved[4] or 0), saved[4], saved[5]
  pool.refusals, pool.shape, pool.trip = tonumber(saved[6] or 0), saved[7], tonumber(saved[8] or 0)
  for index, rule in ipairs(rules) do
    rule.level, rule.at = tonumber(saved[7 + index * 2] or 0), tonumber(saved[8 + index * 2] or 0)
    if rule.kind == 'b' and pool.shape ~= rules.text then
      -- The level was written under other limits, or lacks answers that came under others: all answers since the bucket
      -- was certainly empty count.
      rule.level, rule.at = redis.call('ZCOUNT', done, text_of(math.floor(now - rule.memory)), '+inf'), now
    end
  end
  pool.flying = redis.call('ZCARD', fly)
  return pool
end

local function level_now(pool, rule)
  return math.max(0, rule.level - math.max(0, pool.now - rule.at) * rule.count / rule.ms)
end

--- Record that one unit was answered at `moment`; of repeated reports, only the latest moment counts.
local function answer_unit(pool, unit, moment)
  local flew = redis.call('ZREM', pool.fly, unit) == 1
  local known = redis.call('ZSCORE', pool.done, unit)
  redis.call('ZADD', pool.done, 'GT', text_of(moment), unit)
  if flew then
    pool.flying = pool.flying - 1
  end
  if flew or not known then
    if pool.shape and pool.shape ~= pool.rules.text then
      -- The levels of the former limits lack this answer, and are invalid if the same limits come back.
      redis.call('HDEL', pool.state, 'shape')
      pool.shape = false
    end
    for index, rule in ipairs(pool.rules) do
      if rule.kind == 'b' then
        rule.level, rule.at = level_now(pool, rule) + 1, pool.now
        redis.call('HSET', pool.state, 'level' .. index, string.format('%.6f', rule.level),
          'at' .. index, text_of(rule.at), 'shape', pool.rules.text)
      end
    end
  end
end

--- Remove old responses, and count units whose lease has ended as answered at that moment; not while the clock is in
--- doubt. After a step of the clock, leases begin anew. `every` also removes the units of a limit of another kind.
local function tidy_pool(pool, thing, lease_ms, every)
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
  if pool.concurrent or every then
    redis.call('ZREMRANGEBYSCORE', pool.open, '-inf', text_of(pool.now))
  end
  redis.call('ZREMRANGEBYSCORE', pool.done, '-inf', '(' .. text_of(pool.now - pool.keep))
end
