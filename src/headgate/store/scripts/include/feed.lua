--- A thing's history: changes in a stream whose ids are revisions. Each names the revision before it, so that a reader
--- who continues from a revision can tell a gap from silence.
--@include clock
--@include hint
local function change(thing, changes, most, kind, member, value)
  if not thing.revision then
    thing.revision = tonumber(redis.call('HGET', thing.meta, 'revision') or 0)
  end
  local revision = next_number(thing)
  redis.call('XADD', changes, 'MAXLEN', '~', most, text_of(revision) .. '-0',
    'k', kind, 'm', member, 'v', value, 'p', text_of(thing.revision))
  thing.revision, thing.changed = revision, true
  return revision
end

local function revision_of(thing)
  local revision = thing.revision or tonumber(redis.call('HGET', thing.meta, 'revision') or 0)
  return math.max(revision, tonumber(thing.epoch or 0))
end

local function close_feed(thing, changes)
  close_thing(thing)
  if thing.changed then
    redis.call('HSET', thing.meta, 'revision', text_of(thing.revision))
    hint(changes, text_of(thing.revision))
  end
end
