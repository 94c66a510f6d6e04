#!lua flags=allow-oom
--- Strike an empty thing from the index, unless it was put again since the claim.
--- KEYS     1 names (zset, by name)   2 due (zset name -> ms)   3 stamps (hash name -> number)
--- ARGV     1 name   2 stamp
--- RETURNS  1 if it was struck, else 0
--- AGAIN    same answer: a second run finds nothing more
local names, due, stamps = KEYS[1], KEYS[2], KEYS[3]
local name, stamp = ARGV[1], ARGV[2]

local known = redis.call('HGET', stamps, name)
if known and known ~= stamp then
  return 0
end
redis.call('ZREM', names, name)
redis.call('ZREM', due, name)
redis.call('HDEL', stamps, name)
return 1
