#!lua
--- Note in which service each instance is, so that a heartbeat may name the instance alone.
--- KEYS     1 places (hash id -> service)   2 seen (zset id -> ms)
--- ARGV     1.. id, service
--- RETURNS  for each: 1
--- AGAIN    same answer: the same is written again
--@include server_time
--@include text_of
local places, seen = KEYS[1], KEYS[2]

local replies = {}
local now = text_of(server_time())
for i = 1, #ARGV, 2 do
  local id, service = ARGV[i], ARGV[i + 1]
  redis.call('HSET', places, id, service)
  redis.call('ZADD', seen, now, id)
  replies[#replies + 1] = 1
end
return replies
