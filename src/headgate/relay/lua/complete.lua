#!lua flags=allow-oom
--- Report how the request of a permit ended; from then on its units cool, or are free again.
--- KEYS     group user   18 backlog/<user> (zset)
--- ARGV     1 context   2 user   3 waiter   4 outcome (unsent, answered, ended, lost, refused)
---          5 age_ms (since the answer began)   6 late_ms (how long a request without an answer may be on its way)
---          7 pause_ms (that the upstream asks for)   8 lease_ms   9 jitter (0 to 1, random)
--- RETURNS  epoch, version, ms of pause
--- AGAIN    same answer: a unit cools once
--@include pools
--@include refusal
--@include call
--@include user_keys
keys.backlog = KEYS[18]
local context, user, waiter, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local age_ms, late_ms, pause_ms, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local jitter = tonumber(ARGV[9])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return { '', '0', '0' }
end
local own, shared = open_pools(keys, policy, thing)

local function settle(pool)
  for n = 1, units_of(waiter) do
    local unit = waiter .. '/' .. n
    if outcome == 'unsent' then
      pool.flying = pool.flying - redis.call('ZREM', pool.fly, unit)
      redis.call('ZREM', pool.open, unit)
    elseif outcome == 'lost' then
      -- It may still arrive: it is in flight until late_ms, and answered at that moment.
      if redis.call('ZSCORE', pool.fly, unit) or not redis.call('ZSCORE', pool.done, unit) then
        redis.call('ZADD', pool.fly, text_of(thing.now + late_ms), unit)
      end
      redis.call('ZADD', pool.open, 'XX', text_of(thing.now + late_ms), unit)
    else
      answer_unit(pool, unit, thing.now - age_ms)
      if outcome ~= 'answered' then
        redis.call('ZREM', pool.open, unit)
      elseif pool.concurrent then
        redis.call('ZADD', pool.open, 'XX', text_of(thing.now + lease_ms), unit)
      end
    end
  end
  tidy_pool(pool, thing, lease_ms)
end

-- The time of answers is kept while there are waiters, to estimate when their turn will come.
local lease = outcome ~= 'unsent' and outcome ~= 'lost' and redis.call('ZSCORE', keys.fly, waiter .. '/1')
if lease and redis.call('EXISTS', keys.line, keys.backlog) > 0 then
  local trip = math.min(lease_ms, math.max(0, thing.now - tonumber(lease) + lease_ms))
  own.trip = own.trip > 0 and own.trip * 0.8 + trip * 0.2 or trip
  redis.call('HSET', keys.user, 'trip', string.format('%.0f', own.trip))
end
settle(own)
if not shared.none then
  settle(shared)
end
local paused = #own.rules > 0 and own or shared
if outcome == 'refused' then
  pause_pool(paused, waiter, pause_ms, jitter)
elseif outcome == 'answered' or outcome == 'ended' then
  end_probe(paused, waiter)
end
local sooner = outcome == 'unsent' and 0 or nil
notify_line(keys, own, sooner)
notify_turns(keys, shared, sooner)
schedule_user(keys, own, user)
close_thing(thing)
return { thing.epoch, policy.version or '0', text_of(math.max(0, paused.pause - thing.now)) }
