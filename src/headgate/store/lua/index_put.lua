#!lua flags=allow-oom
--- Note that things exist and when each is next due; an earlier time stands.
--- KEYS     1 meta (hash)   2 names (zset, by name)   3 due (zset name -> ms)   4 stamps (hash name -> number)
--- ARGV     1 context   2.. name, due_in_ms
--- RETURNS  for each name: its stamp
--- AGAIN    same answer: the earlier time stands, the stamp only grows
--@include clock
local meta, names, due, stamps = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context = ARGV[1]

local thing = open_thing(meta, context, 0)
local replies = {}
for i = 2, #ARGV, 2 do
  local name, due_in = ARGV[i], ARGV[i + 1]
  local stamp = text_of(next_number(thing))
  redis.call('ZADD', names, 0, name)
  redis.call('HSET', stamps, name, stamp)
  if due_in ~= '' then
    redis.call('ZADD', due, 'LT', text_of(thing.now + tonumber(due_in)), name)
  end
  replies[#replies + 1] = stamp
end
close_thing(thing)
return replies
