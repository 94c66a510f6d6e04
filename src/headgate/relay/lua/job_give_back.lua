#!lua
--- Give back a job that was read and not sent: whoever reads the stream next has it at once. Its place in line stays.
--- KEYS     1 jobs (stream)   2 orders (hash)   3 events (channel)
--- ARGV     1 id   2 entry (the one it was read by)   3 group
--- RETURNS  nothing
--- AGAIN    same answer: what is given back has another entry
--@include hint
local jobs, orders, events = KEYS[1], KEYS[2], KEYS[3]
local id, entry, group = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':entry')
if found[1] ~= 'waiting' or found[2] ~= entry then
  return false
end
redis.call('XACK', jobs, group, entry)
redis.call('XDEL', jobs, entry)
redis.call('HSET', orders, id .. ':entry', redis.call('XADD', jobs, '*', 'id', id))
redis.call('HDEL', orders, id .. ':holder')
hint(events, 'job ' .. id)
return false
