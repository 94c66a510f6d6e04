#!lua flags=no-writes
--- Read a queue for a gate: its policy, the resources for which it is on, and the passes that were revoked.
--- KEYS     1 meta (hash)   2 policy (hash)   3 auto (hash resource -> since:above)   4 revoked (zset user -> ms when)
--- ARGV     1 context   2 most revoked passes
--- RETURNS  policy json, version, generation, now, [resource, …] that are on, [user, when, …] revoked lately
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--@include queue
local meta, policy, auto, revoked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, most = ARGV[1], tonumber(ARGV[2])

local queue = open_queue({ meta = meta, policy = policy }, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
return {
  redis.call('HGET', policy, 'json'), tonumber(queue.version), queue.generation, queue.now, redis.call('HKEYS', auto),
  redis.call('ZRANGEBYSCORE', revoked, text_of(queue.now - queue.session_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, most),
}
