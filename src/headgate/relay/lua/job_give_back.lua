#!lua flags=allow-oom
--- Give back a job that is not being sent: whoever looks next has it at once. Its place in line stays.
--- KEYS     1 orders (hash)   2 events (channel)   3 owners (zset user -> ms)   4 backlog/<user> (zset units:id -> place)
---          5 begun/<user> (zset units:id -> place)
--- ARGV     1 id   2 user   3 holder
--- RETURNS  1 if it was given back, else 0
--- AGAIN    same answer: what is given back has another holder, or none
--@include hint
local orders, events, owners, backlog, begun = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, user, holder = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':holder', id .. ':place')
if found[1] ~= 'waiting' or found[2] ~= holder then
  return 0
end
redis.call('HDEL', orders, id .. ':holder')
local member = redis.call('ZRANGEBYSCORE', begun, found[3], found[3])[1]
if member then
  redis.call('ZREM', begun, member)
  redis.call('ZADD', backlog, found[3], member)
end
redis.call('ZADD', owners, 0, user)
hint(events, 'job')
return 1
