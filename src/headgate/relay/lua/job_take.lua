#!lua
--- Take a job that came out of the stream. One that its last holder was sending when it died comes with that state.
--- KEYS     1 meta (hash)   2 orders (hash)
--- ARGV     1 context   2 id   3 holder
--- RETURNS  state, order, place, attempts, age_ms, attempt (the last that was marked); nothing if it has ended
--- AGAIN    same answer: the holder is written again
--@include clock
local meta, orders = KEYS[1], KEYS[2]
local context, id, holder = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':order', id .. ':place', id .. ':attempts',
  id .. ':attempt')
if found[1] ~= 'waiting' and found[1] ~= 'sending' then
  return {}
end
redis.call('HSET', orders, id .. ':holder', holder)
local thing = open_thing(meta, context, 0)
local age = math.max(0, thing.now - math.floor(tonumber(found[3]) / 1000))
return { found[1], found[2], found[3], found[4] or '0', text_of(age), found[5] or '' }
