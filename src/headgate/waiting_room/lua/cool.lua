#!lua flags=allow-oom
--- Find the resources that have been below the threshold for the whole cooldown, and delete zero counts.
--- KEYS     1 meta (hash)   2 policy (hash)   3 traffic (hash resource -> counts)   4 auto (hash resource -> since:above)
---          5 events (stream)
--- ARGV     1 context   2 threshold   3 window_ms   4 cooldown_ms   5 most
--- RETURNS  how many are on, then the resources that may be switched off
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: it only reads, and deletes zero counts
--@include queue
--@include traffic
--@include auto_record
local meta, policy, traffic, auto, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context, threshold, window_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local cooldown_ms, most = tonumber(ARGV[4]), tonumber(ARGV[5])

local queue = open_queue({ meta = meta, policy = policy, events = events }, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end

local on = redis.call('HGETALL', auto)
local replies = { #on / 2 }
for i = 1, math.min(#on, most * 2), 2 do
  local resource = on[i]
  local since, above = unpack_auto(on[i + 1])
  if total((read_traffic(traffic, resource, queue.now, window_ms))) >= threshold then
    redis.call('HSET', auto, resource, pack_auto(since, queue.now))
  elseif queue.now - tonumber(above) >= cooldown_ms then
    replies[#replies + 1] = resource
  end
end

local page = redis.call('HSCAN', traffic, redis.call('HGET', meta, 'traffic_at') or '0', 'COUNT', most)
for i = 1, #page[2], 2 do
  if total((read_traffic(traffic, page[2][i], queue.now, window_ms))) == 0 then
    redis.call('HDEL', traffic, page[2][i])
  end
end
redis.call('HSET', meta, 'traffic_at', page[1])
close_queue(queue)
return replies
