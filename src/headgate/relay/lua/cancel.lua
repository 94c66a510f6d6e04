#!lua flags=allow-oom
--- Take a waiter out of its line, or take back a permit that was never used to send.
--- KEYS     group user   18 crowd (hash process user -> waiters)
--- ARGV     1 context   2 user   3 waiter   4 lease_ms
--- RETURNS  1 if it stood in line or had a permit, else 0
--- AGAIN    same answer: a second run finds nothing more
--@include pools
--@include line
--@include turns
--@include call
--@include user_keys
keys.crowd, keys.owner = KEYS[18], ARGV[2]
local context, user, waiter, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 0
end
local own, shared = open_pools(keys, policy, thing)
local rank = redis.call('ZRANK', keys.line, waiter)
local had = rank and 1 or 0
leave_line(keys, waiter)
for n = 1, units_of(waiter) do
  local unit = waiter .. '/' .. n
  for _, pool in ipairs({ own, shared }) do
    local freed = redis.call('ZREM', pool.fly, unit)
    pool.flying = pool.flying - freed
    redis.call('ZREM', pool.open, unit)
    had = math.max(had, freed)
  end
end
tidy_pool(own, thing, lease_ms)
if not shared.none then
  tidy_pool(shared, thing, lease_ms)
  if redis.call('HGET', keys.heads, user) == waiter then
    take_turn(keys, user, true, nil)
  end
end
if had == 1 then
  notify_line(keys, own, rank or 0)
  notify_turns(keys, shared, 0)
end
schedule_user(keys, own, user)
close_thing(thing)
return had
