#!lua flags=no-writes
--- Read the public view of the line, with marks along it from which each user finds their rank by their place.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)
--- ARGV     1 context   2 marks (how many)
--- RETURNS  epoch, generation, serving, waiting, rate, now, how many of the marked were seen lately, then place,
---          rank, …
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--@include queue
--@include recent_calls
--@include user_record
local meta, policy, waiting, users = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, most = ARGV[1], tonumber(ARGV[2])

local queue = open_queue({ meta = meta, policy = policy }, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
local length = redis.call('ZCARD', waiting)
local marks, present = {}, 0
local number = math.min(most, length)
for i = 1, number do
  local rank = number == 1 and 0 or math.floor((i - 1) * (length - 1) / (number - 1) + 0.5)
  local found = redis.call('ZRANGE', waiting, rank, rank, 'WITHSCORES')
  local user = read_user(users, found[1])
  if user and (queue.seconds - user.seen) * 1000 <= queue.grace_ms then
    present = present + 1
  end
  marks[#marks + 1] = tonumber(found[2])
  marks[#marks + 1] = rank + 1
end
return { queue.epoch, queue.generation, queue.serving, length, math.floor(flow(queue) * 1000000), queue.now, present,
  unpack(marks) }
