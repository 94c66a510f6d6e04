#!lua flags=allow-oom
--- Claim the things that are due, most overdue first; no other process gets them until the claim lapses.
--- KEYS     1 meta (hash)   2 due (zset name -> ms)   3 stamps (hash name -> number)
--- ARGV     1 context   2 most   3 claim_ms
--- RETURNS  name, stamp, name, stamp, …
--- AGAIN    same answer: a claim whose reply was lost lapses by itself
--@include clock
--@include keep_time
local meta, due, stamps = KEYS[1], KEYS[2], KEYS[3]
local context, most, claim_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local thing = open_thing(meta, context, 0)
local names = redis.call('ZRANGEBYSCORE', due, '-inf', text_of(thing.now), 'LIMIT', 0, most)
local replies = {}
local until_ms = text_of(thing.now + claim_ms)
for _, name in ipairs(names) do
  redis.call('ZADD', due, until_ms, name)
  replies[#replies + 1] = name
  replies[#replies + 1] = redis.call('HGET', stamps, name) or '0'
end
if #names > 0 then
  close_thing(thing)
else
  keep_time(thing)
end
return replies
