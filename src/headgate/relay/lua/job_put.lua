#!lua
--- Accept a job: its place in its user's line is fixed now, and it is in the stream for whoever sends it.
--- KEYS     1 meta (hash)   2 policy (hash)   3 jobs (stream)   4 orders (hash)   5 events (channel)
---          6 line/<user> (zset waiter -> place)
--- ARGV     1 context   2 id   3 order   4 most (waiting of this user)   5 most_jobs   6 group
--- RETURNS  place
--- REFUSES  UPSTREAM_UNKNOWN  LINE_FULL
--- AGAIN    same answer: a job of this id is accepted once
--@include line
--@include clock
local meta, policy, jobs, orders, events, line = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local context, id, order, most, most_jobs, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local known = redis.call('HGET', orders, id .. ':place')
if known then
  return known
end
local rules = read_policy(policy)
if not rules.version or rules.gone then
  return redis.error_reply('UPSTREAM_UNKNOWN There is no upstream of this name; its operator can add it.')
end
if redis.call('ZCARD', line) >= tonumber(most) or redis.call('XLEN', jobs) >= tonumber(most_jobs) then
  return redis.error_reply('LINE_FULL Too many requests are waiting already.')
end
local thing = open_upstream(meta, rules, context)
local place = text_of(next_number(thing))
if redis.call('EXISTS', jobs) == 0 then
  redis.pcall('XGROUP', 'CREATE', jobs, group, '0', 'MKSTREAM')
end
local entry = redis.call('XADD', jobs, '*', 'id', id)
redis.call('HSET', orders, id .. ':order', order, id .. ':place', place, id .. ':entry', entry,
  id .. ':state', 'waiting')
close_thing(thing)
hint(events, 'job ' .. id)
return place
