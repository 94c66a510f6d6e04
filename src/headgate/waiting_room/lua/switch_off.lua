#!lua flags=allow-oom
--- Switch a resource's queue off again, unless its traffic was over the threshold again meanwhile.
--- KEYS     1 meta (hash)   2 policy (hash)   3 auto (hash resource -> since:above)   4 events (stream)
--- ARGV     1 context   2 resource   3 cooldown_ms
--- RETURNS  1 if it is off now
--- AGAIN    same answer: it stays off
--@include queue
--@include auto_record
local meta, policy, auto, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, resource, cooldown_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local queue = open_queue({ meta = meta, policy = policy, events = events }, context)
local _, above = unpack_auto(redis.call('HGET', auto, resource))
if above and queue.now - tonumber(above) < cooldown_ms then
  return 0
end
redis.call('HDEL', auto, resource)
close_queue(queue)
hint(events, 'gate')
return 1
