#!lua flags=allow-oom
--- Name jobs that still wait after their deadline; one that is being sent is let go on.
--- KEYS     1 meta (hash)   2 orders (hash)   3 deadlines (zset id -> ms)
--- ARGV     1 context   2 most
--- RETURNS  ids
--- AGAIN    same answer: they are named until they have ended
--@include clock
local meta, orders, deadlines = KEYS[1], KEYS[2], KEYS[3]
local context, most = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, 0)
local ids = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', text_of(thing.now), 'LIMIT', 0, most)) do
  if redis.call('HGET', orders, id .. ':state') == 'waiting' then
    ids[#ids + 1] = id
  else
    redis.call('ZREM', deadlines, id)
  end
end
return ids
