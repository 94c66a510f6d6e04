#!lua flags=allow-oom
--- Ask again for a permit, from a place in line that was given before: a store that is out of memory goes on with those
--- who wait already. It holds no more for them than before.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)   18 crowd (hash process user -> waiters)   19 backlog/<user> (zset units:id -> place)
---          20 begun/<user> (zset units:id -> place)   21 owners (zset user -> ms)
--- ARGV     1 context   2 user   3 waiter   4 place   5 wait_ms   6 most (in line)   7 lease_ms
--- RETURNS  how (1 granted, 0 waiting, 2 cannot come in time, 3 line full), place, position (0: did not wait),
---          ms (left of the lease, or to wait), exact (1: ask then; 0: at least), room left, used, epoch, version
--- REFUSES  UPSTREAM_UNKNOWN  COST_TOO_HIGH
--- AGAIN    same answer: a waiter has one place and one permit
--@include clock
--@include ask
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17],
  crowd = KEYS[18], backlog = KEYS[19], begun = KEYS[20], owners = KEYS[21], owner = ARGV[2] }
local context, user, waiter, place = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local wait_ms, most, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

return ask_for_permit(keys, context, user, waiter, place, wait_ms, most, lease_ms)
