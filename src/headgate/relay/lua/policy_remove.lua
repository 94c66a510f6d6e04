#!lua flags=allow-oom
--- Take an upstream out of service; what its users did is kept until it is old, so that a new policy counts it.
--- KEYS     1 policy (hash)   2 events (channel)
--- ARGV     none
--- RETURNS  1 if it was there, else 0
--- AGAIN    same answer: a second run finds nothing more
--@include hint
local policy, events = KEYS[1], KEYS[2]

local saved = redis.call('HMGET', policy, 'version', 'gone')
if not saved[1] or saved[2] then
  return 0
end
redis.call('HSET', policy, 'gone', '1')
hint(events, 'policy 0')
return 1
