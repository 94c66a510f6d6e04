#!lua
--- Ask for a permit: grant it, or let the waiter stand in its user's line and say when to ask again.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)   18 crowd (hash process user -> waiters)
--- ARGV     1 context   2 user   3 waiter   4 place (0: none yet)   5 wait_ms   6 most (in line)   7 lease_ms
--- RETURNS  how (1 granted, 0 waiting, 2 cannot come in time, 3 line full), place, position (0: did not wait),
---          ms (left of the lease, or to wait), exact (1: ask then; 0: at least), room left, used, epoch, version
--- REFUSES  UPSTREAM_UNKNOWN  COST_TOO_HIGH
--- AGAIN    same answer: a waiter has one place and one permit
--@include clock
--@include line
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17],
  crowd = KEYS[18], owner = ARGV[2] }
local context, user, waiter, place = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local wait_ms, most, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local policy = read_policy(keys.policy, user)
if not policy.version or policy.gone then
  return redis.error_reply('UPSTREAM_UNKNOWN There is no upstream of this name; its operator can add it.')
end
local units = units_of(waiter)
local thing = open_upstream(keys.meta, policy, context)
local own, shared = open_side(keys, policy, thing)
if units > math.min(capacity_of(own), capacity_of(shared)) then
  return redis.error_reply('COST_TOO_HIGH One request may not cost more permits than the limit has.')
end
tidy_pool(own, thing, lease_ms)
tidy_pool(shared, thing, lease_ms)

local function answer(how, position, ms, exact, room)
  note_user(keys, own, user)
  close_thing(thing)
  local used = capacity_of(own) - room
  return { how, text_of(place), position, text_of(ms), exact and 1 or 0, room, used, thing.epoch, policy.version }
end

local lease = own.flying > 0 and redis.call('ZSCORE', keys.fly, waiter .. '/1')
if lease then
  return answer(1, 0, tonumber(lease) - thing.now, true, room_of(own))
end

local length = redis.call('ZCARD', keys.line)
if length > 0 then
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', keys.patience, '-inf', text_of(thing.now), 'LIMIT', 0, CALLS)) do
    drop_out(keys, other)
  end
end
local standing = length > 0 and redis.call('ZSCORE', keys.line, waiter)
if standing then
  place = tonumber(standing)
elseif place == 0 then
  if length >= most then
    return answer(3, length, wait_of(own, length + units), false, 0)
  end
  place = next_number(thing)
end
local alone = length == 0
if not alone and not standing then
  stand(keys, waiter, place)
end
local ahead = alone and 0 or units_ahead(keys, thing, waiter)
local room = thing.holding and 0 or room_of(own)
local own_turn = ahead and room >= ahead + units
local granted = own_turn
if own_turn and not shared.none then
  local others = turns_ahead(keys, thing, user)
  granted = others and room_of(shared) >= others + units
end

if granted then
  if not alone then
    drop_out(keys, waiter)
  end
  take_units(own, waiter, thing.now + lease_ms)
  if not shared.none then
    take_units(shared, waiter, thing.now + lease_ms)
    shared.called = shared.called - (redis.call('ZSCORE', keys.turns, user) and 1 or 0)
    take_turn(keys, user, room > units, next_number(thing))
  end
  own.called = own.called - (alone and 0 or 1)
  call_line(keys, own)
  call_turns(keys, shared)
  return answer(1, 0, lease_ms, true, room - units)
end

if alone then
  stand(keys, waiter, place)
end
redis.call('ZADD', keys.relays, text_of(thing.now), string.match(waiter, '^[^.]+'))
local rank = redis.call('ZRANK', keys.line, waiter)
local wanted = (ahead or rank) + units
local wait = math.max(thing.hold - thing.now, wait_of(own, wanted))
local exact = wanted <= known_of(own)
if not shared.none then
  if own_turn or room < 1 then
    take_turn(keys, user, room >= 1, not redis.call('ZSCORE', keys.turns, user) and next_number(thing) or nil)
  end
  local users = math.max(1, redis.call('ZCARD', keys.turns))
  local turn = redis.call('ZRANK', keys.turns, user) or users - 1
  local nth = turn + units + rank * users
  wait = math.max(wait, wait_of(shared, nth))
  exact = exact and own_turn and nth <= known_of(shared)
end
call_line(keys, own)
call_turns(keys, shared)
if wait > wait_ms then
  drop_out(keys, waiter)
  return answer(2, rank + 1, wait, exact, math.max(0, room))
end
redis.call('ZADD', keys.patience, text_of(thing.now + wait_ms), waiter)
return answer(0, rank + 1, wait, exact, math.max(0, room))
