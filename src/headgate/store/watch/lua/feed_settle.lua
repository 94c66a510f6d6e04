#!lua flags=allow-oom
--- Assign a new epoch to a thing after a possible loss of data, and notify its watchers.
--- KEYS     1 meta (hash)   2 changes (stream)
--- ARGV     1 context
--- RETURNS  the epoch, or 0 if there is no such thing
--- AGAIN    same answer: a thing that is settled stays as it is
--@include clock
--@include feed
local meta, changes = KEYS[1], KEYS[2]
local context = ARGV[1]

local thing = open_thing(meta, context)
if thing.state == 'new' then
  return '0'
end
if thing.state == 'uncertain' then
  close_thing(thing)
  hint(changes, thing.epoch)
end
return thing.epoch
