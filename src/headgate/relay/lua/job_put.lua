#!lua
--- Accept a job: fix its place in its user's line, and add it to the user's backlog, from which a runner sends it.
--- KEYS     1 meta (hash)   2 policy (hash)   3 jobs (stream of all that have not ended)   4 orders (hash)
---          5 events (channel)   6 line/<user> (zset waiter -> place)   7 backlog/<user> (zset units:id -> place)
---          8 owners (zset user -> ms)   9 deadlines (zset id -> ms)   10 users (zset user -> ms)
--- ARGV     1 context   2 id   3 order   4 user   5 units   6 wait_ms   7 most (waiting of this user)   8 most_jobs
--- RETURNS  place
--- REFUSES  UPSTREAM_UNKNOWN  LINE_FULL
--- AGAIN    same answer: a job of this id is accepted once
--@include upstream
--@include backlog
local meta, policy, jobs, orders, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local line, backlog, owners, deadlines, users = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local context, id, order, user, units = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local wait_ms, most, most_jobs = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local FIRST_VISIT_MS = 10000

local known = redis.call('HGET', orders, id .. ':place')
if known then
  return known
end
local rules = read_policy(policy)
if not rules.version or rules.gone then
  return redis.error_reply('UPSTREAM_UNKNOWN There is no upstream of this name; its operator can add it.')
end
if redis.call('ZCARD', line) + jobs_before(backlog, line) >= most or redis.call('XLEN', jobs) >= most_jobs then
  return redis.error_reply('LINE_FULL Too many requests are waiting already.')
end
local thing = open_upstream(meta, rules, context)
local place = text_of(next_number(thing))
local entry = redis.call('XADD', jobs, '*', 'id', id)
redis.call('HSET', orders, id .. ':order', order, id .. ':place', place, id .. ':entry', entry,
  id .. ':state', 'waiting')
redis.call('ZADD', backlog, place, pack_job(units, id))
make_due(owners, user, thing.now)
redis.call('ZADD', deadlines, text_of(thing.now + wait_ms), id)
redis.call('ZADD', users, 'NX', text_of(thing.now + FIRST_VISIT_MS), user)
close_thing(thing)
hint(events, 'job')
return place
