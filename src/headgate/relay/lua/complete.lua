#!lua flags=allow-oom
--- Tell how the request of a permit went; from then on its units cool, or are free again.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)
--- ARGV     1 context   2 user   3 waiter   4 outcome (unsent, answered, ended, lost, refused)
---          5 age_ms (since the answer began)   6 late_ms (how long a request without an answer may be on its way)
---          7 pause_ms   8 lease_ms
--- RETURNS  epoch, version
--- AGAIN    same answer: a unit cools once
--@include clock
--@include line
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17] }
local context, user, waiter, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local age_ms, late_ms, pause_ms, lease_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
local own, shared = open_side(keys, policy, thing)

local function release(pool, unit)
  if pool.concurrent then
    pool.busy = pool.busy - redis.call('ZREM', pool.open, unit)
  end
end

local function settle(pool)
  for n = 1, units_of(waiter) do
    local unit = waiter .. '/' .. n
    if outcome == 'unsent' then
      pool.flying = pool.flying - redis.call('ZREM', pool.fly, unit)
      release(pool, unit)
    elseif outcome == 'lost' then
      -- Perhaps it arrives yet: in flight until then, and answered at that moment.
      if redis.call('ZSCORE', pool.fly, unit) or not redis.call('ZSCORE', pool.done, unit) then
        redis.call('ZADD', pool.fly, text_of(thing.now + late_ms), unit)
      end
      redis.call('ZADD', pool.open, 'XX', text_of(thing.now + late_ms), unit)
    else
      answer_unit(pool, unit, thing.now - age_ms)
      if outcome ~= 'answered' then
        release(pool, unit)
      elseif pool.concurrent then
        redis.call('ZADD', pool.open, 'XX', text_of(thing.now + lease_ms), unit)
      end
    end
  end
  tidy_pool(pool, thing, lease_ms)
end

settle(own)
if not shared.none then
  settle(shared)
end
local paused = #own.rules > 0 and own or shared
if outcome == 'refused' then
  -- The upstream knows better: nobody sends until then, and then one goes first.
  paused.pause, paused.probe = math.max(paused.pause, thing.now + pause_ms), '1'
  redis.call('HSET', paused.state, 'pause', text_of(paused.pause), 'probe', '1')
elseif paused.probe and (outcome == 'answered' or outcome == 'ended') then
  paused.probe = false
  redis.call('HDEL', paused.state, 'probe')
end
local sooner = outcome == 'unsent' and 0 or nil
call_line(keys, own, sooner)
call_turns(keys, shared, sooner)
note_user(keys, own, user)
close_thing(thing)
return { thing.epoch, policy.version or '0' }
