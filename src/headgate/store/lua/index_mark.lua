#!lua flags=allow-oom
--- Note that things have changed, for processes that keep in memory what things say; old notes are dropped.
--- KEYS     1 meta (hash)   2 changes (zset name -> number)
--- ARGV     1 context   2 kept_ms   3.. name
--- RETURNS  for each name: the number of its change
--- AGAIN    same answer: the thing counts as changed once more, with a greater number
--@include clock
local meta, changes = KEYS[1], KEYS[2]
local context, kept_ms = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, 0)
local replies = {}
for i = 3, #ARGV do
  local number = text_of(next_number(thing))
  redis.call('ZADD', changes, number, ARGV[i])
  replies[#replies + 1] = number
end
redis.call('ZREMRANGEBYSCORE', changes, '-inf', text_of(thing.us - kept_ms * 1000))
close_thing(thing)
return replies
