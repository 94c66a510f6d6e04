#!lua flags=allow-oom
--- Set what an operator decides for an instance; it outlives the instance's registrations.
--- KEYS     group service
--- ARGV     1 context   2 history   3 id   4 enabled   5 weight   6 drain
---          (each of the last three: empty to leave, - to give back)
--- RETURNS  the instance as it is now (json)
--- REFUSES  UNKNOWN_INSTANCE
--- AGAIN    same answer: the same is written again
--@include service
--@include publish_instance
--@include service_keys
local context, history, id = ARGV[1], ARGV[2], ARGV[3]
local enabled, weight, drain = ARGV[4], ARGV[5], ARGV[6]

local thing = open_service(meta, context)
if redis.call('HEXISTS', states, id) == 0 then
  return redis.error_reply('UNKNOWN_INSTANCE')
end
local before = redis.call('HGET', overrides, id) or NO_OVERRIDE
local override = read_override(before)
local after = pack_override(enabled == '' and override.enabled or enabled, weight == '' and override.weight or weight,
  drain == '' and override.drain or drain, override.evicted_until)
if after == NO_OVERRIDE then
  redis.call('HDEL', overrides, id)
else
  redis.call('HSET', overrides, id, after)
end
if after ~= before then
  publish_instance(thing, service, history, id)
end
close_service(thing, changes)
return instance_json(service, id)
