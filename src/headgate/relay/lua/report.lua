#!lua flags=allow-oom
--- Report again the permits that a process holds, unsent or not yet ended, so that they count after a loss of data.
--- KEYS     group user
--- ARGV     1 context   2 user   3 lease_ms   4.. waiter
--- RETURNS  how many units were not known any more
--- AGAIN    same answer: a permit that is known is left alone
--@include pools
--@include user_keys
local context, user, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 0
end
local own, shared = open_pools(keys, policy, thing)
local lost = 0

local function take_again(pool, unit)
  local known = redis.call('ZSCORE', pool.fly, unit) or redis.call('ZSCORE', pool.done, unit)
  if not known then
    redis.call('ZADD', pool.fly, text_of(thing.now + lease_ms), unit)
  end
  if pool.concurrent then
    redis.call('ZADD', pool.open, 'NX', text_of(thing.now + lease_ms), unit)
  end
  return known
end

for i = 4, #ARGV do
  for n = 1, units_of(ARGV[i]) do
    local unit = ARGV[i] .. '/' .. n
    lost = lost + (take_again(own, unit) and 0 or 1)
    if not shared.none then
      take_again(shared, unit)
    end
  end
end
schedule_user(keys, own, user)
close_thing(thing)
return lost
