#!lua flags=allow-oom
--- Forget results that have been kept long enough.
--- KEYS     1 meta (hash)   2 orders (hash)   3 ends (zset id -> ms)
--- ARGV     1 context   2 most
--- RETURNS  how many were forgotten
--- AGAIN    same answer: a second run finds nothing more
--@include clock
local meta, orders, ends = KEYS[1], KEYS[2], KEYS[3]
local context, most = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, 0)
local ids = redis.call('ZRANGEBYSCORE', ends, '-inf', text_of(thing.now), 'LIMIT', 0, most)
for _, id in ipairs(ids) do
  redis.call('ZREM', ends, id)
  redis.call('HDEL', orders, id .. ':state', id .. ':reason', id .. ':response', id .. ':place', id .. ':attempts')
end
return #ids
