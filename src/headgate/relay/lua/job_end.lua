#!lua flags=allow-oom
--- End a job: keep its result for a while, and delete its order and its place in the user's backlog.
--- KEYS     1 meta (hash)   2 policy (hash)   3 jobs (stream)   4 orders (hash)   5 ends (zset id -> ms)
---          6 events (channel)   7 deadlines (zset id -> ms)   8 owners (zset user -> ms)
---          9 backlog/<user> (zset units:id -> place)   10 begun/<user> (zset units:id -> place)   11 line/<user> (zset)
--- ARGV     1 context   2 id   3 user   4 holder (empty: an operator or caller)   5 state   6 reason   7 response   8 keep_ms
--- RETURNS  the state it is in now; empty if there is no such job
--- REFUSES  JOB_TAKEN  JOB_SENDING
--- AGAIN    same answer: the first end stands
--@include upstream
local meta, policy, jobs, orders, ends, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local deadlines, owners, backlog, begun, line = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local context, id, user, holder, state, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local response, keep_ms = ARGV[7], tonumber(ARGV[8])

local found = redis.call('HMGET', orders, id .. ':state', id .. ':holder', id .. ':entry', id .. ':place')
if not found[1] then
  return ''
end
if found[1] ~= 'waiting' and found[1] ~= 'sending' then
  return found[1]
end
if holder ~= '' and found[2] ~= holder then
  return redis.error_reply('JOB_TAKEN Another relay has this job.')
end
if holder == '' and found[1] == 'sending' then
  return redis.error_reply('JOB_SENDING This job is being sent and cannot be cancelled any more.')
end
local thing = open_upstream(meta, read_policy(policy), context)
redis.call('HSET', orders, id .. ':state', state, id .. ':reason', reason, id .. ':response', response)
redis.call('HDEL', orders, id .. ':order', id .. ':entry', id .. ':holder', id .. ':attempt')
redis.call('ZADD', ends, text_of(thing.now + keep_ms), id)
redis.call('ZREM', deadlines, id)
redis.call('XDEL', jobs, found[3])
local waited = redis.call('ZREMRANGEBYSCORE', backlog, found[4], found[4])
redis.call('ZREMRANGEBYSCORE', begun, found[4], found[4])
redis.call('ZADD', owners, 'XX', 'LT', text_of(thing.now), user)
close_thing(thing)
local first = waited == 1 and redis.call('ZRANGE', line, 0, 0)[1]
if first then
  hint(events, 'turn ' .. first .. ' 0') -- it may have waited for this job only
end
hint(events, 'ended ' .. id .. ' ' .. state)
return state
