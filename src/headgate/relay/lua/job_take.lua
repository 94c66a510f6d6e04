#!lua flags=allow-oom
--- Take a job that is to be sent. One that its last holder was sending when it died comes with that state.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 orders (hash)
--- ARGV     1 context   2 id   3 holder
--- RETURNS  state, order, place, attempts, age_ms, attempt (the last that was marked); nothing if it has ended
--- REFUSES  JOB_TAKEN
--- AGAIN    same answer: the holder is written again
--@include upstream
local meta, policy, relays, orders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, id, holder = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':order', id .. ':place', id .. ':attempts',
  id .. ':attempt', id .. ':holder')
if found[1] ~= 'waiting' and found[1] ~= 'sending' then
  return {}
end
local thing = open_upstream(meta, read_policy(policy), context)
if found[6] and found[6] ~= holder and alive(relays, thing, found[6]) then
  return redis.error_reply('JOB_TAKEN Another relay has this job.')
end
redis.call('HSET', orders, id .. ':holder', holder)
close_thing(thing)
local age = math.max(0, thing.now - math.floor(tonumber(found[3]) / 1000))
return { found[1], found[2], found[3], found[4] or '0', text_of(age), found[5] or '' }
