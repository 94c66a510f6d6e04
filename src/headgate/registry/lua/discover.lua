#!lua flags=no-writes
--- Give a service's instances at one moment; with filters, only those that pass them all.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> words)   6 deadlines (zset id -> ms)   7 overrides (hash id -> words)
---          8 checks (hash id -> json)
--- ARGV     1 context   2 lease_ms   3 from   4 share   5 healthy (or empty)   6 known (shape)   7 known_figures
---          8.. part, key, operator, words, number
--- RETURNS  state, epoch, revision, now, held, overdue, protection, protected_until, shape, figures, then flat lists:
---          deadlines, metrics, records, metadata, states, overrides, checks; without filters, metrics are left out if
---          they are the known ones, and so is all after them if the shape is
--@include clock
--@include service
--@include passes
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, checks = KEYS[7], KEYS[8]
local context, lease_ms, from, share = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local healthy, known, known_figures = ARGV[5], ARGV[6], ARGV[7]

local thing = open_service(meta, context, lease_ms)
if thing.state == 'new' then
  return {'new', '0', '0', text_of(thing.now), 0, 0, 'auto', '0', '', '', {}, {}, {}, {}, {}, {}, {}}
end
local overdue = redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now))
local kept = overdue > 0 and held(thing, deadlines, from, share)
local noted = redis.call('HMGET', meta, 'shape', 'figures')
local revision, figures = text_of(revision_of(thing)), noted[2] or '0'
local shape = thing.epoch .. ':' .. revision .. ':' .. (noted[1] or '0')
local reply = {
  thing.state, thing.epoch, revision, text_of(thing.now), kept and 1 or 0, overdue,
  thing.protection, text_of(thing.protected_until), shape, figures,
}
local chosen = #ARGV > 7 or healthy ~= ''
local lists = {redis.call('ZRANGE', deadlines, 0, -1, 'WITHSCORES')}
lists[2] = (chosen or known_figures ~= figures or known ~= shape) and redis.call('HGETALL', metrics) or {}
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
