#!lua flags=allow-oom
--- Look after one user: end what has ended, and leave no key of one who is idle.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)   18 crowd (hash process user -> waiters)   19 backlog/<user> (zset units:id -> place)
---          20 begun/<user> (zset units:id -> place)
--- ARGV     1 context   2 user   3 lease_ms
--- RETURNS  1 if nothing of this user is left, else 0
--- AGAIN    same answer: what has ended stays ended
--@include clock
--@include line
--@include turns
--@include call
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17],
  crowd = KEYS[18], backlog = KEYS[19], begun = KEYS[20], owner = ARGV[2] }
local context, user, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten then
  return 1
end
local own, shared = open_side(keys, policy, thing)
tidy_pool(own, thing, lease_ms, true)
if not shared.none then
  tidy_pool(shared, thing, lease_ms, true)
end
drop_late(keys, thing, REAP)
local idle = redis.call('EXISTS', keys.line, keys.fly, keys.done, keys.open, keys.backlog, keys.begun) == 0
  and thing.now >= own.pause and not thing.holding
for _, rule in ipairs(own.rules) do
  idle = idle and (rule.kind ~= 'b' or level_now(own, rule) == 0)
end
if idle then
  redis.call('DEL', keys.user, keys.patience)
  redis.call('ZREM', keys.users, user)
  take_turn(keys, user, false, nil)
else
  call_line(keys, own)
  note_user(keys, own, user)
end
call_turns(keys, shared)
close_thing(thing)
return idle and 1 or 0
