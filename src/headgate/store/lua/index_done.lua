#!lua flags=allow-oom
--- Give claims back with the time each is next due; one that was put again meanwhile is due at once.
--- KEYS     1 meta (hash)   2 due (zset name -> ms)   3 stamps (hash name -> number)
--- ARGV     1 context   2.. name, stamp, due_in_ms
--- RETURNS  for each name: 1 if it was unchanged, else 0
--- AGAIN    same answer: the same time is written again
--@include clock
local meta, due, stamps = KEYS[1], KEYS[2], KEYS[3]
local context = ARGV[1]

local thing = open_thing(meta, context, 0)
local replies = {}
for i = 2, #ARGV, 3 do
  local name, stamp, due_in = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local unchanged = redis.call('HGET', stamps, name) == stamp
  if not unchanged then
    redis.call('ZADD', due, 'XX', text_of(thing.now), name)
  elseif due_in == '' then
    redis.call('ZREM', due, name)
  else
    redis.call('ZADD', due, 'XX', text_of(thing.now + tonumber(due_in)), name)
  end
  replies[#replies + 1] = unchanged and 1 or 0
end
close_thing(thing)
return replies
