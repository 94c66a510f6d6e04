#!lua flags=no-writes
--- Read a thing's changes later than a revision, or say why they cannot be given without a gap.
--- KEYS     1 meta (hash)   2 changes (stream)
--- ARGV     1 context   2 after   3 most
--- RETURNS  what (same, new, uncertain, reset, compacted), epoch, revision, entries
--@include clock
--@include feed
local meta, changes = KEYS[1], KEYS[2]
local context, after, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local thing = open_thing(meta, context, 0)
if thing.state == 'new' then
  return {'new', '0', '0', {}}
elseif thing.state == 'uncertain' then
  return {'uncertain', '0', '0', {}}
end
local newest = tonumber(redis.call('HGET', meta, 'revision') or 0)
local revision = math.max(newest, tonumber(thing.epoch))
-- Revision 0 is before everything; any other below the epoch belongs to a history that may have been lost.
if (after > 0 and after < tonumber(thing.epoch)) or after > revision then
  return {'reset', thing.epoch, text_of(revision), {}}
end
local entries = redis.call('XRANGE', changes, '(' .. text_of(after) .. '-0', '+', 'COUNT', most)
if #entries == 0 then
  return {after < newest and 'compacted' or 'same', thing.epoch, text_of(revision), {}}
end
local fields = entries[1][2]
if tonumber(fields[8]) > after then
  return {'compacted', thing.epoch, text_of(revision), {}}
end
return {'same', thing.epoch, text_of(revision), entries}
