--- A user's line at an upstream, and which of its waiters are alive.
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
local LOST_MS = 1500

--- Read what scripts must know of a policy; `user` may be nil. Without a version there is none.
local function read_policy(policy, user)
  local found = redis.call('HMGET', policy, 'version', 'gone', 'hold', 'rules', 'shared', 'plan:' .. (user or ''),
    'outgoing', 'outgoing_shared')
  local rules, outgoing = found[4], found[7]
  if user and found[6] then
    local plan = redis.call('HMGET', policy, 'rules:' .. found[6], 'outgoing:' .. found[6])
    rules, outgoing = plan[1] or rules, plan[1] and plan[2] or outgoing
  end
  return { version = found[1], gone = found[2], hold = tonumber(found[3] or 0), rules = rules, shared = found[5],
    outgoing = outgoing, outgoing_shared = found[8] }
end

--- Open an upstream's clock. History that may be lost counts as a full window, and the hold is long enough also for every
--- process to say again what it has in hand. Every script that writes meta opens it here: who notices a loss sets the hold.
--- `forgotten`: it was taken out of service, and all that was left of it is gone.
local function open_upstream(meta, policy, context)
  local saved = redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was', 'revived')
  local thing = open_thing(meta, context, math.max(policy.hold, LOST_MS), saved)
  thing.revived, thing.forgotten = tonumber(saved[9] or 0), policy.gone and thing.state == 'new'
  if thing.forgotten then
    return thing -- nothing may be written any more: nobody would look after it
  end
  if thing.held_anew then
    redis.call('HSET', meta, 'lost_at', text_of(thing.now))
  end
  local seen = tonumber(saved[2] or 0) + tonumber(saved[3] or 0)
  if thing.now - seen > GAP_MS then
    thing.revived = thing.now
    redis.call('HSET', meta, 'revived', text_of(thing.now))
  end
  return thing
end

local function open_side(keys, policy, thing)
  local rules = add_outgoing(read_rules(policy.rules), policy.outgoing, thing.now)
  local together = add_outgoing(read_rules(policy.shared), policy.outgoing_shared, thing.now)
  local own = open_pool(rules, keys.fly, keys.done, keys.open, keys.user, thing.now, true)
  local shared = open_pool(together, keys.flying, keys.answered, keys.opened, keys.state, thing.now)
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

--- Take waiters whose patience has ended out of the line, so many at most.
local function drop_late(keys, thing, most)
  for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', keys.patience, '-inf', text_of(thing.now), 'LIMIT', 0, most)) do
    drop_out(keys, waiter)
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

--- Note when a worker should next look at this user: at the first lease's end, else when the last response is old.
local function note_user(keys, own, user)
  local at = redis.call('ZRANGE', keys.fly, 0, 0, 'WITHSCORES')[2]
  if not at then
    local last = redis.call('ZRANGE', keys.done, -1, -1, 'WITHSCORES')[2]
    at = last and tonumber(last) + own.keep or own.now + KEEP_MS
  end
  redis.call('ZADD', keys.users, text_of(tonumber(at)), user)
end
