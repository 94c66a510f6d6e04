#!lua flags=no-writes
--- Read a service's instances at one moment; with filters, only those that pass them all.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> words)   6 deadlines (zset id -> ms)   7 overrides (hash id -> words)
---          8 checks (hash id -> json)   9 extended (zset id -> ms, deadlines before an outage)
--- ARGV     1 context   2 from   3 share   4 healthy (or empty)   5 known (shape)   6 known_figures
---          7 anyway (1: the caller cannot settle it; then no instance is hidden)   8.. part, key, operator, words, number
--- RETURNS  state (new, same, or unsettled: the script settle comes first), epoch, revision, now, held, late,
---          protection, protected_until, shape, figures, then flat lists: deadlines, extended, metrics, records,
---          metadata, states, overrides, checks; without filters, metrics are left out if they are the known ones, and
---          so is all after them if the shape is
--@include service
--@include state_record
--@include override_record
--@include mass_expiry
--@include passes
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, checks, extended = KEYS[7], KEYS[8], KEYS[9]
local context, from, share = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local healthy, known, known_figures, anyway = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

--- Tell whether all instances that are late now were late at an earlier visit; always where no worker ever ran.
local function seen_dead(thing)
  local last = redis.call('ZREVRANGEBYSCORE', deadlines, text_of(thing.now), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return thing.visited == 0 or tonumber(last[2]) <= thing.hidden
end

local thing = open_service(meta, context)
if thing.state == 'new' then
  return {'new', '0', '0', text_of(thing.now), 0, 0, 'auto', '0', '', '', {}, {}, {}, {}, {}, {}, {}, {}}
end
local overdue = redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now))
local kept = not settled(thing) or (overdue > 0 and held(thing, deadlines, from, share))
if anyway == '0' and (not settled(thing) or (overdue > 0 and not kept and not seen_dead(thing))) then
  return {'unsettled', thing.epoch, '0', text_of(thing.now), 0, 0, 'auto', '0', '', '', {}, {}, {}, {}, {}, {}, {}, {}}
end
local extensions = thing.now < thing.extended_until and redis.call('ZRANGE', extended, 0, -1, 'WITHSCORES') or {}
overdue = math.max(overdue, count_extended(thing, extended))
local noted = redis.call('HMGET', meta, 'shape', 'figures')
local revision, figures = text_of(revision_of(thing)), noted[2] or '0'
local shape = thing.epoch .. ':' .. revision .. ':' .. (noted[1] or '0')
local reply = {
  thing.state, thing.epoch, revision, text_of(thing.now), kept and 1 or 0, overdue,
  thing.protection, text_of(thing.protected_until), shape, figures,
}
local chosen = #ARGV > 7 or healthy ~= ''
local lists = {redis.call('ZRANGE', deadlines, 0, -1, 'WITHSCORES'), extensions}
lists[3] = (chosen or known_figures ~= figures or known ~= shape) and redis.call('HGETALL', metrics) or {}
for _, key in ipairs({records, metadata, states, overrides, checks}) do
  lists[#lists + 1] = (chosen or known ~= shape) and redis.call('HGETALL', key) or {}
end
if chosen then
  lists = passing(lists, thing.now, kept, healthy, ARGV, 8)
end
for _, list in ipairs(lists) do
  reply[#reply + 1] = list
end
return reply
