#!lua flags=allow-oom
--- Tell for how long this store has surely lost nothing: since it was first used or its history last became uncertain.
--- A store that its maker knows to be new has lost nothing ever. This is kept beside a list of things, in its slot, so
--- that both are lost together: who finds no list finds a young store.
--- KEYS     1 meta (hash)   2 names (zset, by name)   3 since (hash)
--- ARGV     1 context   2 name (of a thing)   3 new (1: the caller has just made this store)
--- RETURNS  age in ms, 1 if a thing of this name is listed, else 0
--- AGAIN    same answer: the first time stands
--@include clock
local meta, names, since = KEYS[1], KEYS[2], KEYS[3]
local context, name, new = ARGV[1], ARGV[2], ARGV[3] == '1'

local thing = open_thing(meta, context, 0)
local saved = redis.call('HMGET', since, 'epoch', 'at')
local at = tonumber(saved[2])
if saved[1] ~= thing.epoch then
  at = new and not saved[1] and 0 or thing.now
  redis.call('HSET', since, 'epoch', thing.epoch, 'at', text_of(at))
end
close_thing(thing)
return { text_of(thing.now - at), redis.call('ZSCORE', names, name) and 1 or 0 }
