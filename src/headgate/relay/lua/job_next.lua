#!lua flags=allow-oom
--- Become the holder of a user's next jobs: the first few, and those that had begun, whose holder is nobody or dead.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 orders (hash)
---          5 owners (zset user -> ms)   6 backlog/<user> (zset units:id -> place)   7 begun/<user> (zset units:id -> place)
--- ARGV     1 context   2 user   3 process   4 most   5 again_ms (when to look at this user again)
--- RETURNS  the ids of the jobs that this process holds among these
--- AGAIN    same answer: what this process holds already is named again
--@include clock
--@include line
--@include backlog
local meta, policy, relays, orders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owners, backlog, begun = KEYS[5], KEYS[6], KEYS[7]
local context, user, process, most, again_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local thing = open_upstream(meta, read_policy(policy), context)
if thing.forgotten then
  return {}
end
local ids = {}
for _, key in ipairs({ begun, backlog }) do
  for _, member in ipairs(redis.call('ZRANGE', key, 0, (key == begun and LOOK or HELD) - 1)) do
    local id = string.match(member, '^%d+:(.*)$')
    local holder = redis.call('HGET', orders, id .. ':holder')
    if most > 0 and not (holder and alive(relays, thing, holder)) then
      holder = process
      redis.call('HSET', orders, id .. ':holder', process)
      most = most - 1
    end
    if holder == process then
      ids[#ids + 1] = id
    end
  end
end
if redis.call('EXISTS', backlog, begun) == 0 then
  redis.call('ZREM', owners, user)
else
  redis.call('ZADD', owners, text_of(thing.now + again_ms), user)
end
close_thing(thing)
return ids
