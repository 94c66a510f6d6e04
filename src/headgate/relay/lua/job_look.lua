#!lua flags=allow-oom
--- Record the heartbeat of a runner, and list the users whose jobs are due, the longest overdue first.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 owners (zset user -> ms)
--- ARGV     1 context   2 process   3 most
--- RETURNS  users
--- AGAIN    same answer: the later time stands
--@include upstream
local meta, policy, relays, owners = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, process, most = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('EXISTS', owners) == 0 then
  return {}
end
local thing = open_upstream(meta, read_policy(policy), context)
redis.call('ZADD', relays, text_of(thing.now), process, text_of(thing.now), RUNNERS)
close_thing(thing)
return redis.call('ZRANGEBYSCORE', owners, '-inf', text_of(thing.now), 'LIMIT', 0, most)
