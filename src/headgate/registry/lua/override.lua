#!lua flags=allow-oom
--- Set what an operator decides for an instance; it outlives the instance's registrations.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> words)   6 deadlines (zset id -> ms)   7 overrides (hash id -> words)
---          8 memory (zset id -> ms, overrides of who has gone)   9 checks (hash id -> json)
---          10 trials (hash id -> words)   11 due (zset id -> ms, checks)   12 changes (stream)
---          13 extended (zset id -> ms, deadlines before an outage)
--- ARGV     1 context   2 history   3 id   4 enabled   5 weight   6 drain
---          (each of the last three: empty to leave, - to give back)
--- RETURNS  the instance as it is now (json)
--- REFUSES  UNKNOWN_INSTANCE
--- AGAIN    same answer: the same is written again
--@include clock
--@include service
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, memory, checks, trials, due, changes = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local extended = KEYS[13]
local context, history, id = ARGV[1], ARGV[2], ARGV[3]
local enabled, weight, drain = ARGV[4], ARGV[5], ARGV[6]
local service = {
  records = records, metadata = metadata, metrics = metrics, states = states, deadlines = deadlines,
  overrides = overrides, memory = memory, checks = checks, trials = trials, due = due, changes = changes,
  extended = extended,
}

local thing = open_service(meta, context)
if redis.call('HEXISTS', states, id) == 0 then
  return redis.error_reply('UNKNOWN_INSTANCE')
end
local before = redis.call('HGET', overrides, id) or NO_OVERRIDE
local override = read_override(before)
local after = table.concat({
  enabled == '' and override.enabled or enabled, weight == '' and override.weight or weight,
  drain == '' and override.drain or drain, text_of(override.evicted_until),
}, ' ')
if after == NO_OVERRIDE then
  redis.call('HDEL', overrides, id)
else
  redis.call('HSET', overrides, id, after)
end
if after ~= before then
  told(thing, service, history, id)
end
close_service(thing, changes)
return view(service, id)
