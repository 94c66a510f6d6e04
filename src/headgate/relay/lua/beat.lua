#!lua
--- Say that a process with waiters or permits is alive; hear which history this is and which policy is in force.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)
--- ARGV     1 context   2 process
--- RETURNS  epoch, version, ms of hold
--- AGAIN    same answer: the later time stands
--@include line
--@include clock
local meta, policy, relays = KEYS[1], KEYS[2], KEYS[3]
local context, process = ARGV[1], ARGV[2]

local known = read_policy(policy)
if not known.version then
  return { '', '', 0 }
end
local thing = open_upstream(meta, known, context)
redis.call('ZADD', relays, text_of(thing.now), process)
close_thing(thing)
return { thing.epoch, known.version, text_of(math.max(0, thing.hold - thing.now)) }
