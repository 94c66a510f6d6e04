#!lua flags=allow-oom
--- Write an upstream's policy. One of which the store knows nothing begins on hold: its history may have been lost, and
--- has been if it is brought back from a process's memory.
--- KEYS     1 meta (hash)   2 policy (hash)   3 events (channel)   4 users (zset user -> ms)   5 flying (zset)
---          6 answered (zset)   7 opened (zset)   8 state (hash)   9 turns (zset)   10 heads (hash)
--- ARGV     1 context   2 document   3 expected (a version, * for none yet, there for any version, empty for any or none,
---          restore and a version: lost)   4 hold_ms   5.. field, value
--- RETURNS  version, 1 if the store knew nothing of it
--- REFUSES  VERSION_CONFLICT
--- AGAIN    never: a version counts once
--@include upstream
--@include outgoing
local meta, policy, events, users = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local flying, answered, opened, state, turns, heads = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local context, document, expected, hold_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local saved = read_policy(policy)
local version = tonumber(saved.version or 0)
local there = saved.version and not saved.gone
local lost = tonumber(string.match(expected, '^restore (%d+)$'))
if lost and saved.version then
  return { text_of(version), 0 }
end
version = lost or version
local conflict = expected == '*' and there or tonumber(expected) and tonumber(expected) ~= (there and version or 0)
if expected == 'there' and not there then
  return redis.error_reply('VERSION_CONFLICT There is no upstream of this name yet.')
end
if conflict then
  return redis.error_reply('VERSION_CONFLICT The upstream is at version ' .. text_of(version) .. '.')
end
local thing = open_upstream(meta, saved, context)
-- Until when permits of the policies before this one may be in flight: one of them may have had a longer lease.
local before = redis.call('HMGET', policy, 'lease', 'leased_until')
local leased_until = math.max(thing.now + tonumber(before[1] or 0), tonumber(before[2] or 0))
local outgoing = {}
for i = 5, #ARGV, 2 do
  local field, plan = ARGV[i], string.match(ARGV[i], '^rules(.*)$')
  if plan then
    local was = redis.call('HMGET', policy, field, 'shared', 'outgoing' .. plan)
    -- What all users shared, no user may exceed alone.
    outgoing['outgoing' .. plan] = outgoing_rules((was[1] or '') .. (was[2] or ''), was[3], ARGV[i + 1], thing.now)
  elseif field == 'shared' then
    local was = redis.call('HMGET', policy, field, 'outgoing_shared')
    outgoing.outgoing_shared = outgoing_rules(was[1], was[2], ARGV[i + 1], thing.now)
  end
end
redis.call('DEL', policy)
redis.call('HSET', policy, 'document', document, 'version', text_of(version + 1), 'hold', text_of(hold_ms),
  'leased_until', text_of(leased_until))
for i = 5, #ARGV, 2 do
  redis.call('HSET', policy, ARGV[i], ARGV[i + 1])
end
for field, ending in pairs(outgoing) do
  if ending ~= '' then
    redis.call('HSET', policy, field, ending)
  end
end
local shared, shares = #read_rules(saved.shared) > 0, #read_rules(redis.call('HGET', policy, 'shared')) > 0
if not shares then
  redis.call('UNLINK', flying, answered, opened, state, turns, heads)
elseif not shared and redis.call('EXISTS', users) == 1 then
  -- Nobody counted together what the users sent one by one: that counts as a full window after the last of it has
  -- arrived.
  redis.call('HSET', state, 'pause', text_of(leased_until + hold_ms))
end
if saved.version then
  -- A loss counts as a full window of the limits that are in force, also of those that came after it.
  local lost_at = tonumber(redis.call('HGET', meta, 'lost_at') or 0)
  if lost_at > 0 then
    thing.hold = math.max(thing.hold, lost_at + hold_ms)
  end
  close_thing(thing)
else
  thing.hold = math.max(thing.hold, thing.now + math.max(hold_ms, LOST_MS))
  close_thing(thing, 'began', lost and '' or text_of(thing.hold), 'lost_at', text_of(thing.now))
end
hint(events, 'policy ' .. text_of(version + 1))
return { text_of(version + 1), saved.version and 0 or 1 }
