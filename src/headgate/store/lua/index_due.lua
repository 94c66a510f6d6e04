#!lua flags=no-writes
--- List the things that are due soon, most overdue first, without claiming them.
--- KEYS     1 meta (hash)   2 due (zset name -> ms)
--- ARGV     1 context   2 within_ms   3 most
--- RETURNS  name, …
--@include clock
local meta, due = KEYS[1], KEYS[2]
local context, within_ms, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local thing = open_thing(meta, context, 0)
return redis.call('ZRANGEBYSCORE', due, '-inf', text_of(thing.now + within_ms), 'LIMIT', 0, most)
