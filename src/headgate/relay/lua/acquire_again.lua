#!lua flags=allow-oom
--- Ask again for a permit from a place in line that was given before. A store that is out of memory runs it, because it
--- needs no more memory for a waiter than before.
--- KEYS     group user   18 crowd (hash process user -> waiters)   19 backlog/<user> (zset units:id -> place)
---          20 begun/<user> (zset units:id -> place)   21 owners (zset user -> ms)
--- ARGV     1 context   2 user   3 waiter   4 place   5 wait_ms   6 most (in line)   7 lease_ms
--- RETURNS  how (1 granted, 0 waiting, 2 cannot come in time, 3 line full), place, position (0: did not wait),
---          ms (left of the lease, or to wait), exact (1: ask then; 0: at least), room left, used, epoch, version
--- REFUSES  UPSTREAM_UNKNOWN  COST_TOO_HIGH
--- AGAIN    same answer: a waiter has one place and one permit
--- LONG     granting counts both pools, the line, the turns and the backlog in one atomic step
--@include ask
--@include user_keys
keys.crowd, keys.backlog, keys.begun, keys.owners, keys.owner = KEYS[18], KEYS[19], KEYS[20], KEYS[21], ARGV[2]
local context, user, waiter, place = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local wait_ms, most, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

return ask_for_permit(keys, context, user, waiter, place, wait_ms, most, lease_ms)
