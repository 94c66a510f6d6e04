#!lua flags=no-writes
--- Read how it stands with one user: the line, what is in flight, what cools, and one waiter's place.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)
--- ARGV     1 context   2 user   3 place (0: nobody's)
--- RETURNS  waiting, flying, cooling, room, ms of pause or hold, position of that place, ms it waits at least
--@include clock
--@include line
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17] }
local context, user, place = ARGV[1], ARGV[2], tonumber(ARGV[3])

local thing = open_thing(keys.meta, context, 0)
local own, shared = open_side(keys, read_policy(keys.policy, user), thing)
local span = own.keep
for _, rule in ipairs(own.rules) do
  span = rule.kind == 'w' and math.min(span, rule.ms) or span
end
-- What nobody has reaped yet counts as answered when its lease ended.
local since = text_of(thing.now - span)
local ended = redis.call('ZCOUNT', keys.fly, since, text_of(thing.now))
own.flying = redis.call('ZCOUNT', keys.fly, '(' .. text_of(thing.now), '+inf')
local cold = redis.call('ZCOUNT', keys.done, since, '+inf') + ended
local ahead = place > 0 and redis.call('ZCOUNT', keys.line, '-inf', '(' .. text_of(place)) or 0
local wait = math.max(thing.hold - thing.now, wait_of(own, ahead + 1))
if not shared.none then
  wait = math.max(wait, wait_of(shared, ahead * math.max(1, redis.call('ZCARD', keys.turns)) + 1))
end
local still = math.max(0, thing.hold - thing.now, own.pause - thing.now)
return { redis.call('ZCARD', keys.line), own.flying, cold, thing.holding and 0 or math.max(0, room_of(own) - ended),
  text_of(still), ahead + 1, text_of(wait) }
