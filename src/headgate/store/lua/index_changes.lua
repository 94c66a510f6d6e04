#!lua flags=no-writes
--- List the changes since a number; another history than before means that changes may have been lost.
--- KEYS     1 meta (hash)   2 changes (zset name -> number)
--- ARGV     1 context   2 after (the number of the last change seen)   3 most
--- RETURNS  history, then name, number, … of the changes, oldest first
--@include clock
local meta, changes = KEYS[1], KEYS[2]
local context, after, most = ARGV[1], ARGV[2], tonumber(ARGV[3])

local thing = open_thing(meta, context, 0)
local found = redis.call('ZRANGEBYSCORE', changes, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
-- Not the epoch that this visit would begin: it is not written, and the next visit would begin another.
return { thing.replid .. ' ' .. (thing.saved[5] or ''), unpack(found) }
