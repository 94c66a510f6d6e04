#!lua flags=allow-oom
--- Remove instances whose lease has ended (mark persistent ones), unless too many are late or the store was away.
--- KEYS     group service   14 lost (zset id -> ms, instances that died lately)
--- ARGV     1 context   2 history   3 keep_ms (overrides)   4 most   5 from   6 share   7 history_ms
--- RETURNS  word (swept, held, protected, gone), next_ms (or -1), instances, suspects, then id, kind of each change
---          (removed, put, or back: it died lately and is here again)
--- AGAIN    same answer: removed instances stay removed; of changes only those that were not reported
--@include service
--@include state_record
--@include mass_expiry
--@include grace_pass
--@include remove_instance
--@include lost
--@include drain
--@include service_keys
local lost = KEYS[14]
local context, history, keep_ms, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local from, share, history_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local VISIT_MS = 2000

local thing = open_service(meta, context)
if thing.state == 'new' then
  return {'gone', -1, 0, 0}
end
if not settled(thing) and not settle(thing, service, most) then
  redis.call('HSET', meta, 'visited', text_of(thing.now))
  close_service(thing, changes)
  return {'held', 0, redis.call('HLEN', states), 0}
end

local overdue = redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now))
local allowed, word = most, 'swept'
local credit = 0
if overdue == 0 then
  word = count_extended(thing, extended) > 0 and 'held' or word
  thing.protected_until = mass_late(thing, deadlines, from, share) and thing.protected_until or 0
elseif (thing.protected_until > 0 and thing.now >= thing.protected_until)
  or mass_late(thing, deadlines, from, share) then
  word = 'protected'
  if thing.protected_until == 0 then
    local first = redis.call('ZRANGE', deadlines, 0, 0)[1]
    thing.protected_until, allowed = thing.now + read_state(redis.call('HGET', states, first)).ttl, 0
    redis.call('HSET', meta, 'draining', '0')
  elseif thing.now < thing.protected_until then
    allowed = 0
  else
    allowed, credit = drain_allowance(thing, overdue, most)
  end
else
  thing.protected_until = 0
end

local reply = {word, 0, 0, 0}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', text_of(thing.now), 'LIMIT', 0, allowed)) do
  local state = read_state(redis.call('HGET', states, id))
  local kind = 'removed'
  if state.ephemeral == '1' then
    remove_instance(thing, service, history, id, 'expired', keep_ms)
  else
    kind = 'put'
    redis.call('ZREM', deadlines, id)
    redis.call('ZREM', extended, id)
    state.lapsed = '1'
    write_state(service, id, state)
    publish_instance(thing, service, history, id)
  end
  note_lost(thing, lost, id)
  reply[#reply + 1] = id
  reply[#reply + 1] = kind
end
for _, id in ipairs(returned(thing, lost, states)) do
  reply[#reply + 1] = id
  reply[#reply + 1] = 'back'
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', memory, '-inf', text_of(thing.now), 'LIMIT', 0, most)) do
  redis.call('ZREM', memory, id)
  if redis.call('HEXISTS', states, id) == 0 then
    redis.call('HDEL', overrides, id)
  end
end

-- The deadlines before an outage are needed until the last lease after it has ended.
if thing.extended_until > 0 and thing.now >= thing.extended_until then
  redis.call('UNLINK', extended)
  thing.extended_until, thing.grace_changed = 0, true
end
local instances = redis.call('HLEN', states)
local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
if instances == 0 and redis.call('HLEN', overrides) == 0 and thing.now - revision_of(thing) / 1000 > history_ms then
  redis.call('UNLINK', meta, records, metadata, metrics, states, deadlines, overrides, memory, checks, trials, due,
    changes, lost, extended)
  return {'gone', -1, 0, 0}
end
redis.call('HSET', meta, 'visited', text_of(thing.now), 'protected_until', text_of(thing.protected_until),
  'hidden', text_of(word == 'swept' and thing.now or thing.hidden))
close_service(thing, changes)
local left = redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now))
local next_ms = instances > 0 and VISIT_MS or math.min(history_ms, 60000)
if left > 0 then
  next_ms = (word == 'swept' or credit > 0) and 0 or 500
elseif first[2] then
  next_ms = math.max(20, math.min(tonumber(first[2]) - thing.now, VISIT_MS))
end
reply[2], reply[3], reply[4] = math.floor(next_ms), instances, math.max(left, count_extended(thing, extended))
return reply
