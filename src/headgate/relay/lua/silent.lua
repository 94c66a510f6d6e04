#!lua flags=allow-oom
--- List dead processes, and remove those that have no waiters any more.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)
--- ARGV     1 context   2 most   3.. process (its waiters are out of their lines)
--- RETURNS  processes
--- AGAIN    same answer: a removed process stays removed until its next heartbeat
--@include upstream
local meta, policy, relays = KEYS[1], KEYS[2], KEYS[3]
local context, most = ARGV[1], tonumber(ARGV[2])

local thing = open_upstream(meta, read_policy(policy), context)
if thing.forgotten then
  return {}
end
for i = 3, #ARGV do
  if not alive(relays, thing, ARGV[i]) then
    redis.call('ZREM', relays, ARGV[i])
  end
end
close_thing(thing)
if thing.now - thing.revived < SILENT_MS then
  return {}
end
return redis.call('ZRANGEBYSCORE', relays, '-inf', text_of(thing.now - SILENT_MS), 'LIMIT', 0, most)
