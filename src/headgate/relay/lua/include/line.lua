--- A user's line at an upstream, the users' turns at what they share, and who must be told that a time became known.
---
--- A waiter's id says which process it waits in, and how many units it wants: `process.number.units`. A process that
--- has not been heard of for a while is taken for dead: its waiters are passed over at once, and the next sweep takes
--- them all out of their lines. The crowd says in whose lines a process has waiters, so that they are found. A process
--- that comes back shows their places, and they stand there again.
---
--- A process beats every second. When nobody at all was heard for GAP_MS, it was the store that was away, and everybody
--- has SILENT_MS anew; so SILENT_MS must be longer than GAP_MS and a beat together.
--@include clock
--@include hint
--@include pool
local SILENT_MS = 4000
local GAP_MS = 2500
local LOOK = 64
local CALLS = 16
local LOST_MS = 1500

--- Read what scripts must know of a policy; `user` may be nil. Without a version there is none.
local function read_policy(policy, user)
  local found = redis.call('HMGET', policy, 'version', 'gone', 'hold', 'rules', 'shared', 'plan:' .. (user or ''))
  local rules = found[4]
  if user and found[6] then
    rules = redis.call('HGET', policy, 'rules:' .. found[6]) or rules
  end
  return { version = found[1], gone = found[2], hold = tonumber(found[3] or 0), rules = rules, shared = found[5] }
end

--- Open an upstream's clock. History that may be lost counts as a full window, and the hold is long enough also for every
--- process to say again what it has in hand. Every script that writes meta opens it here: who notices a loss sets the hold.
local function open_upstream(meta, policy, context)
  local saved = redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was', 'revived')
  local thing = open_thing(meta, context, math.max(policy.hold, LOST_MS), saved)
  thing.revived = tonumber(saved[9] or 0)
  local seen = tonumber(saved[2] or 0) + tonumber(saved[3] or 0)
  if thing.now - seen > GAP_MS then
    thing.revived = thing.now
    redis.call('HSET', meta, 'revived', text_of(thing.now))
  end
  return thing
end

local function open_side(keys, policy, thing)
  local own = open_pool(read_rules(policy.rules), keys.fly, keys.done, keys.open, keys.user, thing.now, true)
  local shared = open_pool(read_rules(policy.shared), keys.flying, keys.answered, keys.opened, keys.state, thing.now)
  own.version, shared.version = policy.version or '0', policy.version or '0'
  return own, shared
end

local function alive(relays, thing, waiter)
  local beat = redis.call('ZSCORE', relays, string.match(waiter, '^[^.]+'))
  return beat and thing.now - math.max(tonumber(beat), thing.revived) < SILENT_MS
end

local function crowd_field(keys, waiter)
  return string.match(waiter, '^[^.]+') .. ' ' .. keys.owner
end

local function stand(keys, waiter, place)
  if redis.call('ZADD', keys.line, text_of(place), waiter) == 1 then
    redis.call('HINCRBY', keys.crowd, crowd_field(keys, waiter), 1)
  end
end

local function drop_out(keys, waiter)
  redis.call('ZREM', keys.patience, waiter)
  if redis.call('ZREM', keys.line, waiter) == 1 then
    local field = crowd_field(keys, waiter)
    if redis.call('HINCRBY', keys.crowd, field, -1) <= 0 then
      redis.call('HDEL', keys.crowd, field)
    end
  end
end

--- Count the units wanted by those ahead in the line; the dead among them leave it. False: too many to look at.
local function units_ahead(keys, thing, waiter)
  local rank = redis.call('ZRANK', keys.line, waiter)
  if not rank or rank >= LOOK then
    return false
  end
  local units = 0
  if rank > 0 then
    for _, other in ipairs(redis.call('ZRANGE', keys.line, 0, rank - 1)) do
      if alive(keys.relays, thing, other) then
        units = units + units_of(other)
      else
        drop_out(keys, other)
        keys.dropped = true
      end
    end
  end
  return units
end

--- Count the units wanted by the users whose turn at the shared limits comes before this one's.
local function turns_ahead(keys, thing, user)
  local rank = redis.call('ZRANK', keys.turns, user) or redis.call('ZCARD', keys.turns)
  if rank >= LOOK then
    return false
  end
  local units = 0
  if rank > 0 then
    for _, other in ipairs(redis.call('ZRANGE', keys.turns, 0, rank - 1)) do
      local head = redis.call('HGET', keys.heads, other)
      if head and alive(keys.relays, thing, head) then
        units = units + units_of(head)
      else
        redis.call('ZREM', keys.turns, other)
        redis.call('HDEL', keys.heads, other)
      end
    end
  end
  return units
end

--- Stand in the round of users, or leave it: `place` is a number, or nil to keep the turn one has.
local function take_turn(keys, user, wants, place)
  local head = wants and redis.call('ZRANGE', keys.line, 0, 0)[1]
  if not head then
    redis.call('ZREM', keys.turns, user)
    redis.call('HDEL', keys.heads, user)
    return
  end
  redis.call('HSET', keys.heads, user, head)
  if place then
    redis.call('ZADD', keys.turns, text_of(place), user)
  end
end

--- Tell those at the front whose time has become known when it is. How many have been told is remembered, so that each
--- script goes on where the last one stopped; `from` says that those behind that rank must be told anew.
local function call_next(pool, from, length, waiter_at, events)
  local changed = pool.policy ~= pool.version
  local known = math.max(0, math.min(known_of(pool), length))
  local called = math.max(0, math.min(pool.called, changed and 0 or from or known, known))
  for rank = called, math.min(known, called + CALLS) - 1 do
    local waiter = waiter_at(rank)
    if waiter then
      hint(events, 'turn ' .. waiter .. ' ' .. text_of(wait_of(pool, rank + units_of(waiter))))
    end
    called = rank + 1
  end
  if changed or tostring(called) ~= pool.told then
    redis.call('HSET', pool.state, 'called', called, 'policy', pool.version)
  end
end

local function call_line(keys, own, from)
  local length = redis.call('ZCARD', keys.line)
  if length == 0 and (own.called == 0 or not own.told) then
    return
  end
  call_next(own, keys.dropped and 0 or from, length, function(rank)
    return redis.call('ZRANGE', keys.line, rank, rank)[1]
  end, keys.events)
end

local function call_turns(keys, shared, from)
  if shared.none then
    return
  end
  call_next(shared, from, redis.call('ZCARD', keys.turns), function(rank)
    local user = redis.call('ZRANGE', keys.turns, rank, rank)[1]
    return user and redis.call('HGET', keys.heads, user)
  end, keys.events)
end

--- Note when a worker should next look at this user: at the first lease's end, else when the last response is old.
local function note_user(keys, own, user)
  local at = redis.call('ZRANGE', keys.fly, 0, 0, 'WITHSCORES')[2]
  if not at then
    local last = redis.call('ZRANGE', keys.done, -1, -1, 'WITHSCORES')[2]
    at = last and tonumber(last) + own.keep or own.now + KEEP_MS
  end
  redis.call('ZADD', keys.users, text_of(tonumber(at)), user)
end
