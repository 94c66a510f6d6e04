#!lua flags=no-writes
--- List the users that are due for a visit of a worker.
--- KEYS     1 meta (hash)   2 users (zset user -> ms)
--- ARGV     1 context   2 most
--- RETURNS  users, the longest overdue first
--@include clock
local meta, users = KEYS[1], KEYS[2]
local context, most = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, 0)
return redis.call('ZRANGEBYSCORE', users, '-inf', text_of(thing.now), 'LIMIT', 0, most)
