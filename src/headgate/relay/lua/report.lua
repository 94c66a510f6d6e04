#!lua flags=allow-oom
--- Say again which permits one holds, not yet sent to not yet ended: after a lost history they count as in flight.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)
--- ARGV     1 context   2 user   3 lease_ms   4.. waiter
--- RETURNS  how many units were not known any more
--- AGAIN    same answer: a permit that is known is left alone
--@include clock
--@include line
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17] }
local context, user, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 0
end
local own, shared = open_side(keys, policy, thing)
local lost = 0

local function take_again(pool, unit)
  local known = redis.call('ZSCORE', pool.fly, unit) or redis.call('ZSCORE', pool.done, unit)
  if not known then
    redis.call('ZADD', pool.fly, text_of(thing.now + lease_ms), unit)
  end
  if pool.concurrent then
    redis.call('ZADD', pool.open, 'NX', text_of(thing.now + lease_ms), unit)
  end
  return known
end

for i = 4, #ARGV do
  for n = 1, units_of(ARGV[i]) do
    local unit = ARGV[i] .. '/' .. n
    lost = lost + (take_again(own, unit) and 0 or 1)
    if not shared.none then
      take_again(shared, unit)
    end
  end
end
note_user(keys, own, user)
close_thing(thing)
return lost
