#!lua flags=allow-oom
--- Become the holder of a user's next jobs: the first few, and those that had begun and have no live holder.
---
--- A runner without room hears how many more could go soon, so that it is worth giving back others for them; such a
--- user stays due until one of them is taken. One whose turn is far off and of whom nothing could be taken is due again
--- shortly before that turn. Looks for no reason are so far apart that all users together cost one every LOOK_APART_MS.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 orders (hash)
---          5 owners (zset user -> ms)   6 backlog/<user> (zset units:id -> place)   7 begun/<user> (zset units:id -> place)
---          8 line/<user> (zset waiter -> place)   9 fly/<user> (zset unit -> lease)   10 done/<user> (zset unit -> ms)
---          11 open/<user> (zset unit -> lease)   12 user/<user> (hash)
--- ARGV     1 context   2 user   3 process   4 most   5 again_ms (when to look at this user again)
--- RETURNS  ms that the first of these jobs must wait at least, how many without a holder could go soon or had begun, the
---          ids of those that this process holds, …; nothing if all that was left of the upstream is gone
--- AGAIN    same answer: what this process holds already is named again
--@include upstream
--@include pool
--@include room
--@include backlog
local SOON_MS = 2000
local LOOK_APART_MS = 5
local meta, policy, relays, orders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owners, backlog, begun, line = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local fly, done, open, state = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local context, user, process, most, again_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local rules = read_policy(policy, user)
local thing = open_upstream(meta, rules, context)
if thing.forgotten then
  return {}
end
local limits = add_outgoing(read_rules(rules.rules), rules.outgoing, thing.now)
local own = open_pool(limits, fly, done, open, state, thing.now, true)
own.flying = redis.call('ZCOUNT', fly, '(' .. text_of(thing.now), '+inf') -- a lease that has ended delays no one
local first = redis.call('ZRANGE', backlog, 0, 0, 'WITHSCORES')
local ahead = first[1] and redis.call('ZCOUNT', line, '-inf', '(' .. first[2]) or 0
local units = first[1] and unpack_job(first[1]) or 1
local wait = math.max(thing.hold - thing.now, wait_of(own, ahead + units))

local ids, unheld = {}, false
local left, held = { [begun] = 0, [backlog] = 0 }, { [begun] = 0, [backlog] = 0 }
for _, key in ipairs({ begun, backlog }) do
  for rank, member in ipairs(redis.call('ZRANGE', key, 0, (key == begun and MOST_AHEAD or HELD) - 1)) do
    local _, id = unpack_job(member)
    local holder = redis.call('HGET', orders, id .. ':holder')
    local free = not (holder and alive(relays, thing, holder))
    if free and most > 0 then
      holder, free, most = process, false, most - 1
      redis.call('HSET', orders, id .. ':holder', process)
    end
    if free then
      left[key] = left[key] + 1
      unheld = unheld or key == backlog and rank == 1
    else
      held[key] = held[key] + 1
    end
    if holder == process then
      ids[#ids + 1] = id
    end
  end
end
local soon = wait <= SOON_MS
if redis.call('EXISTS', backlog, begun) == 0 then
  redis.call('ZREM', owners, user)
elseif not (unheld and soon) then
  local again = math.max(again_ms, redis.call('ZCARD', owners) * LOOK_APART_MS)
  if unheld then
    again = math.min(again, math.max(SOON_MS / 2, wait - SOON_MS))
  end
  redis.call('ZADD', owners, text_of(thing.now + again), user)
end
close_thing(thing)
local ready = math.max(unheld and 1 or 0, room_of(own) - ahead - held[backlog])
return { text_of(wait), left[begun] + (soon and math.min(left[backlog], ready) or 0), unpack(ids) }
