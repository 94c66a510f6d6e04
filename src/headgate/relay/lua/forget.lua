#!lua flags=allow-oom
--- Unlink the keys of an upstream that was taken out of service and has no users or jobs any more. That it was
--- taken out stays known for a while: a relay that remembers it must not take it for lost, and its next version is none
--- that was there before.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset)   4 turns (zset)   5 heads (hash)   6 users (zset)
---          7 flying (zset)   8 answered (zset)   9 opened (zset)   10 state (hash)   11 jobs (stream)
---          12 orders (hash)   13 ends (zset)   14 crowd (hash)   15 owners (zset)   16 deadlines (zset)
--- ARGV     1 keep_ms (how long it stays known that it was there)
--- RETURNS  1 if it is forgotten, else 0
--- AGAIN    same answer: a second run finds nothing more
local meta, policy, relays, turns, heads, users = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local flying, answered, opened, state = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local jobs, orders, ends, crowd, owners, deadlines = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local keep_ms = ARGV[1]

local saved = redis.call('HMGET', policy, 'version', 'gone')
if saved[1] and not saved[2] or redis.call('EXISTS', users, orders) > 0 then
  return 0
end
redis.call('UNLINK', meta, policy, relays, turns, heads, users, flying, answered, opened, state, jobs, ends, crowd,
  owners, deadlines)
if saved[1] then
  redis.call('HSET', policy, 'version', saved[1], 'gone', '1')
  redis.call('PEXPIRE', policy, keep_ms)
end
return 1
