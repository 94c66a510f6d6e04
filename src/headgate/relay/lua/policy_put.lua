#!lua
--- Write an upstream's policy. One brought back from a process's memory means that history was lost: it begins on hold.
--- KEYS     1 meta (hash)   2 policy (hash)   3 events (channel)
--- ARGV     1 context   2 document   3 expected (a version, * for none yet, empty for any, restore and a version: lost)
---          4 hold_ms   5.. field, value
--- RETURNS  version
--- REFUSES  VERSION_CONFLICT
--- AGAIN    never: a version counts once
--@include line
--@include clock
local meta, policy, events = KEYS[1], KEYS[2], KEYS[3]
local context, document, expected, hold_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local saved = read_policy(policy)
local version = tonumber(saved.version or 0)
local there = saved.version and not saved.gone
local lost = tonumber(string.match(expected, '^restore (%d+)$'))
if lost and saved.version then
  return text_of(version)
end
version = lost or version
local conflict = expected == '*' and there or tonumber(expected) and tonumber(expected) ~= (there and version or 0)
if conflict then
  return redis.error_reply('VERSION_CONFLICT The upstream is at version ' .. text_of(version) .. '.')
end
local thing = open_upstream(meta, saved, context)
redis.call('DEL', policy)
redis.call('HSET', policy, 'document', document, 'version', text_of(version + 1), 'hold', text_of(hold_ms))
for i = 5, #ARGV, 2 do
  redis.call('HSET', policy, ARGV[i], ARGV[i + 1])
end
if lost then
  thing.hold = math.max(thing.hold, thing.now + math.max(hold_ms, LOST_MS))
end
close_thing(thing)
hint(events, 'policy ' .. text_of(version + 1))
return text_of(version + 1)
