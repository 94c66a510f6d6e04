#!lua flags=allow-oom
--- Shorten the hold that an upstream began with, because its store is known to have lost nothing for a while. What was
--- before that while may be lost, and counts for limits that are set later too.
--- KEYS     1 meta (hash)   2 policy (hash)   3 events (channel)
--- ARGV     1 context   2 age_ms (for how long the store has surely lost nothing)
--- RETURNS  1 if it was shortened, else 0
--- AGAIN    same answer: a hold is shortened once
--@include upstream
local meta, policy, events = KEYS[1], KEYS[2], KEYS[3]
local context, age_ms = ARGV[1], tonumber(ARGV[2])

local known = read_policy(policy)
local thing = open_upstream(meta, known, context)
if thing.state ~= 'same' or text_of(thing.hold) ~= redis.call('HGET', meta, 'began') then
  return 0 -- it holds for another reason, or anew
end
thing.hold = math.max(thing.now, thing.now - age_ms + math.max(known.hold, LOST_MS))
close_thing(thing, 'lost_at', text_of(math.max(0, thing.now - age_ms)))
redis.call('HDEL', meta, 'began')
hint(events, 'policy ' .. (known.version or '0'))
return 1
