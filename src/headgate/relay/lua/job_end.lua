#!lua flags=allow-oom
--- End a job: its result is kept for a while, its order and its place in the stream are gone.
--- KEYS     1 meta (hash)   2 policy (hash)   3 jobs (stream)   4 orders (hash)   5 ends (zset id -> ms)
---          6 events (channel)
--- ARGV     1 context   2 id   3 holder (empty: nobody's)   4 state   5 reason   6 response   7 keep_ms   8 group
--- RETURNS  the state it is in now; empty if there is no such job
--- REFUSES  JOB_TAKEN  JOB_SENDING
--- AGAIN    same answer: the first end stands
--@include line
--@include clock
local meta, policy, jobs, orders, ends, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local context, id, holder, state, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local response, keep_ms, group = ARGV[6], tonumber(ARGV[7]), ARGV[8]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':holder', id .. ':entry')
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
if found[3] then
  redis.call('XACK', jobs, group, found[3])
  redis.call('XDEL', jobs, found[3])
end
close_thing(thing)
hint(events, 'ended ' .. id .. ' ' .. state)
return state
