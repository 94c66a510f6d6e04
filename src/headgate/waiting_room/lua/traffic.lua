#!lua
--- Count requests for resources; one that crosses the threshold within the window switches its queue on.
--- KEYS     1 meta (hash)   2 policy (hash)   3 traffic (hash resource -> counts)   4 auto (hash resource -> since:above)
---          5 events (stream)
--- ARGV     1 context   2 threshold   3 window_ms   4 most_on   5 most_counted   6.. resource, count
--- RETURNS  for each resource: 1 if its queue is on, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    never: requests would be counted twice
--@include queue
--@include traffic
--@include auto_record
local meta, policy, traffic, auto, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context, threshold, window_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most_on, most_counted = tonumber(ARGV[4]), tonumber(ARGV[5])

local queue = open_queue({ meta = meta, policy = policy, events = events }, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_all(refusal, 6, #ARGV, 2)
end

local switched, replies = false, {}
for i = 6, #ARGV, 2 do
  local resource, more = ARGV[i], tonumber(ARGV[i + 1])
  local on = redis.call('HGET', auto, resource)
  if on or redis.call('HEXISTS', traffic, resource) == 1 or redis.call('HLEN', traffic) < most_counted then
    local counts, part = read_traffic(traffic, resource, queue.now, window_ms)
    counts[part % 10 + 1] = counts[part % 10 + 1] + more
    local above = total(counts) >= threshold
    write_traffic(traffic, resource, counts, part)
    if above and (on or redis.call('HLEN', auto) < most_on) then
      local since = on and unpack_auto(on) or text_of(queue.now)
      redis.call('HSET', auto, resource, pack_auto(since, queue.now))
      switched, on = switched or not on, true
    end
  end
  replies[#replies + 1] = on and 1 or 0
end
close_queue(queue)
if switched then
  hint(events, 'gate')
end
return replies
