#!lua flags=allow-oom
--- Record the heartbeat of a process with waiters or permits; gives the epoch and the policy's version. A process that
--- had an answer under another epoch says how long ago: until that answer is out of the window, nothing is granted.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)
--- ARGV     1 context   2 process (empty: it has neither)   3 epoch (that it last knew)
---          4 answered_ms (since its last answer; empty: none)
--- RETURNS  epoch, version, ms of hold
--- AGAIN    same answer: the later time stands
--@include upstream
local meta, policy, relays = KEYS[1], KEYS[2], KEYS[3]
local context, process, epoch, answered_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local known = read_policy(policy)
if not known.version then
  return { '', '', 0 }
end
local thing = open_upstream(meta, known, context)
if thing.forgotten then
  return { '', '', 0 }
end
if process ~= '' then
  redis.call('ZADD', relays, text_of(thing.now), process)
end
if answered_ms and epoch ~= '' and epoch ~= thing.epoch and answered_ms < known.hold then
  thing.hold = math.max(thing.hold, thing.now + known.hold - answered_ms)
  redis.call('HDEL', meta, 'began') -- nobody may shorten it now
end
close_thing(thing)
return { thing.epoch, known.version, text_of(math.max(0, thing.hold - thing.now)) }
