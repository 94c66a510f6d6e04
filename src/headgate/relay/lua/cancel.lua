#!lua flags=allow-oom
--- Take a waiter out of its line, or take back a permit that was never used to send.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)   18 crowd (hash process user -> waiters)
--- ARGV     1 context   2 user   3 waiter   4 lease_ms
--- RETURNS  1 if it stood in line or had a permit, else 0
--- AGAIN    same answer: what is gone stays gone
--@include clock
--@include line
--@include turns
--@include call
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17],
  crowd = KEYS[18], owner = ARGV[2] }
local context, user, waiter, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 0
end
local own, shared = open_side(keys, policy, thing)
local rank = redis.call('ZRANK', keys.line, waiter)
local had = rank and 1 or 0
drop_out(keys, waiter)
for n = 1, units_of(waiter) do
  local unit = waiter .. '/' .. n
  for _, pool in ipairs({ own, shared }) do
    local freed = redis.call('ZREM', pool.fly, unit)
    pool.flying = pool.flying - freed
    redis.call('ZREM', pool.open, unit)
    had = math.max(had, freed)
  end
end
tidy_pool(own, thing, lease_ms)
if not shared.none then
  tidy_pool(shared, thing, lease_ms)
  if redis.call('HGET', keys.heads, user) == waiter then
    take_turn(keys, user, true, nil)
  end
end
if had == 1 then
  call_line(keys, own, rank or 0)
  call_turns(keys, shared, 0)
end
note_user(keys, own, user)
close_thing(thing)
return had
