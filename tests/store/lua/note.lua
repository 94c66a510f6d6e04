#!lua
--- Keep the first text noted under an id.
--- KEYS     1 notes (hash id -> text)   2 runs (hash id -> count)   3 meta (hash)
--- ARGV     1 context   2 id   3 text
--- RETURNS  id, text, how often it ran
--- AGAIN    same answer: the first text stands
--@include clock
local notes, runs, meta = KEYS[1], KEYS[2], KEYS[3]
local context, id, text = ARGV[1], ARGV[2], ARGV[3]

local thing = open_thing(meta, context, 0)
redis.call('HSETNX', notes, id, text)
local count = redis.call('HINCRBY', runs, id, 1)
close_thing(thing)
return { id, redis.call('HGET', notes, id), count }
