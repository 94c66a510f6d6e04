#!lua flags=allow-oom
--- Give back a job that is not being sent; its place in line stays. A runner that stops
--- makes it due at once. A runner without room gives back a job that has to wait anyway: it stays due when it was, unless
--- it has just had a permit.
--- KEYS     1 orders (hash)   2 events (channel)   3 owners (zset user -> ms)   4 backlog/<user> (zset units:id -> place)
---          5 begun/<user> (zset units:id -> place)
--- ARGV     1 id   2 user   3 holder   4 at_once (1: others look now; 0: when they would have)
--- RETURNS  1 if it was given back, else 0
--- AGAIN    same answer: a job that was given back has another holder, or none
--@include hint
local orders, events, owners, backlog, begun = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, user, holder, at_once = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

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
if at_once or member then
  redis.call('ZADD', owners, 0, user)
  hint(events, 'job')
end
return 1
