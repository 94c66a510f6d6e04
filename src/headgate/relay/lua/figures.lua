#!lua flags=no-writes
--- Read the figures of one user: the line, units in flight, units that cool, and one waiter's position.
--- KEYS     group user   18 backlog/<user> (zset units:id -> place)   19 owners (zset user -> ms)
--- ARGV     1 context   2 user   3 place (0: none)   4 units (that the one at this place wants)
--- RETURNS  waiting, flying, cooling, room, ms of pause or hold, position of that place, ms it will wait, waiting jobs
--@include pools
--@include room
--@include backlog
--@include user_keys
keys.backlog, keys.owners = KEYS[18], KEYS[19]
local context, user, place, units = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local thing = open_thing(keys.meta, context, 0)
local own, shared = open_pools(keys, read_policy(keys.policy, user), thing)
local span = own.keep
for _, rule in ipairs(own.rules) do
  span = rule.kind == 'w' and math.min(span, rule.ms) or span
end
-- Units that are not reaped yet count as answered when their lease ended.
local since = text_of(thing.now - span)
local ended = redis.call('ZCOUNT', keys.fly, since, text_of(thing.now))
own.flying = redis.call('ZCOUNT', keys.fly, '(' .. text_of(thing.now), '+inf')
local cold = redis.call('ZCOUNT', keys.done, since, '+inf') + ended

--- Estimate the wait of the n-th unit from now: its least wait, and the time of an answer for each round.
local function likely_wait(pool, n)
  local wait = wait_of(pool, n)
  for _, rule in ipairs(pool.rules) do
    local most = rule.burst > 0 and rule.burst or rule.count
    local first = rule.kind == 'c' and open_units(pool) or 0
    wait = math.max(wait, wait_of(pool, n) + math.floor((first + n - 1) / most) * own.trip)
  end
  return wait
end

local ahead, before = 0, 0
if place > 0 then
  ahead, before = jobs_before(keys.backlog, keys.line, place)
  local line = redis.call('ZCOUNT', keys.line, '-inf', '(' .. text_of(place))
  local looked = line > 0 and redis.call('ZRANGE', keys.line, 0, math.min(line, MOST_AHEAD) - 1) or {}
  local wanted = 0
  for _, waiter in ipairs(looked) do
    wanted = wanted + units_of(waiter)
  end
  ahead, before = ahead + line, before + (#looked > 0 and math.ceil(wanted * line / #looked) or 0)
end
local wait = math.max(thing.hold - thing.now, likely_wait(own, before + units))
if not shared.none then
  -- One unit for each user whose turn comes before, and a whole round for each unit that the same user wants before.
  -- One who does not stand in the round comes after those who do, and after those whose jobs became due before and are
  -- not held.
  local users, turn = redis.call('ZCARD', keys.turns), redis.call('ZRANK', keys.turns, user)
  if not turn then
    local due = redis.call('ZCOUNT', keys.owners, '-inf', text_of(thing.now))
    turn = users + math.min(due, redis.call('ZRANK', keys.owners, user) or due)
    users = math.max(turn + 1, users + due)
  end
  wait = math.max(wait, likely_wait(shared, turn + before * users + units))
end
local still = math.max(0, thing.hold - thing.now, own.pause - thing.now, shared.pause - thing.now)
return { redis.call('ZCARD', keys.line), own.flying, cold, thing.holding and 0 or math.max(0, room_of(own) - ended),
  text_of(still), ahead + 1, text_of(wait), redis.call('ZCARD', keys.backlog) }
