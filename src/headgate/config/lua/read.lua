#!lua flags=no-writes
--- Read values at one moment: the named keys, or all of a namespace.
--- KEYS     1 meta (hash)   2 values (hash key -> json)
--- ARGV     1 context   2.. keys
--- RETURNS  state, epoch, revision, then the values found
--@include clock
--@include feed
local meta, values = KEYS[1], KEYS[2]
local context = ARGV[1]

local thing = open_thing(meta, context, 0)
if thing.state == 'new' then
  return {'new', '0', '0'}
end
local reply = {thing.state, thing.epoch, text_of(revision_of(thing))}
if #ARGV == 1 then
  for _, value in ipairs(redis.call('HVALS', values)) do
    reply[#reply + 1] = value
  end
  return reply
end
for i = 2, #ARGV do
  local key = ARGV[i]
  local value = redis.call('HGET', values, key)
  if value then
    reply[#reply + 1] = value
  end
end
return reply
