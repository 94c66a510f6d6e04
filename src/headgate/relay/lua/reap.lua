#!lua flags=allow-oom
--- Clean up one user: end leases and waits that are over, and delete the keys of an idle user.
--- KEYS     group user   18 crowd (hash process user -> waiters)   19 backlog/<user> (zset units:id -> place)
---          20 begun/<user> (zset units:id -> place)
--- ARGV     1 context   2 user   3 lease_ms
--- RETURNS  1 if nothing of this user is left, else 0
--- AGAIN    same answer: what has ended stays ended
--@include pools
--@include line
--@include turns
--@include call
--@include user_keys
keys.crowd, keys.backlog, keys.begun, keys.owner = KEYS[18], KEYS[19], KEYS[20], ARGV[2]
local context, user, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 1
end
local own, shared = open_pools(keys, policy, thing)
tidy_pool(own, thing, lease_ms, true)
if not shared.none then
  tidy_pool(shared, thing, lease_ms, true)
end
drop_expired(keys, thing, REAP)
local idle = redis.call('EXISTS', keys.line, keys.fly, keys.done, keys.open, keys.backlog, keys.begun) == 0
  and thing.now >= own.pause and not thing.holding
for _, rule in ipairs(own.rules) do
  idle = idle and (rule.kind ~= 'b' or level_now(own, rule) == 0)
end
if idle then
  redis.call('DEL', keys.user, keys.patience)
  redis.call('ZREM', keys.users, user)
  take_turn(keys, user, false, nil)
else
  notify_line(keys, own)
  schedule_user(keys, own, user)
end
notify_turns(keys, shared)
close_thing(thing)
return idle and 1 or 0
