--- Gives every instance one lease of its own after an outage, counted from the return of the store.
---
--- The first caller notices the return: by a new replication id or a stepped clock, because the store gave it no answer
--- or took no writes for SHORTEST_OUTAGE_MS or more, or because no worker has visited for AWAY_MS (then heartbeats may
--- have been impossible; once for each such absence). A pass over the service (grace_pass.lua), in bounded steps, then
--- moves each deadline to one lease after the return; until it is complete, no instance is dead. `extended` keeps the
--- deadline of the last heartbeat until the next one. An instance that was seen dead before stays dead: `hidden` is the
--- last time at which late instances were taken for dead.
---
--- A caller's report of an outage counts only if no visit of the service is known to be within it: `run` is the time at
--- which the latest visits without a pause of PAUSE_MS began, `refuted` the visit that refuted a report. Each moment
--- counts once, and an instance without a heartbeat since the return before gets no second lease, only as much time as
--- the outage took. So a caller with a bad connection cannot keep dead instances.
local AWAY_MS = 6000
local SHORTEST_OUTAGE_MS = 1000
local PAUSE_MS = 500

local function begin_grace(thing, before)
  thing.back, thing.before, thing.cursor, thing.graced_visit = thing.now, before, '0', thing.visited
  thing.outage_ms = 0
  thing.extended_until = math.max(thing.extended_until, thing.now + thing.longest)
  thing.grace_changed = true
end

--- Begin a grace if the store left the caller's earlier requests, or this one, unanswered.
local function note_outage(thing)
  local from, till = thing.outage_from, thing.outage_until
  if thing.expected > 0 and thing.raw - thing.expected >= SHORTEST_OUTAGE_MS then
    from = till and thing.expected - till < SHORTEST_OUTAGE_MS and from or thing.expected
    till = thing.raw
  end
  if not from then
    return
  end
  -- Time before the last return has counted already.
  from, till = math.max(from + thing.offset, thing.back), math.min(till + thing.offset, thing.now)
  if till - from < SHORTEST_OUTAGE_MS or thing.now - till >= thing.longest then
    return
  end
  -- The middle half of it, because callers know the store's time only roughly.
  local margin = (till - from) / 4
  local saved = redis.call('HMGET', thing.meta, 'run', 'refuted')
  local run = tonumber(saved[1] or thing.seen)
  if from < tonumber(saved[2] or 0) then
    return
  elseif run <= till - margin and thing.seen >= from + margin then
    thing.refuted = thing.seen
    return
  end
  -- An absence of the workers that began earlier and was not noticed counts with it.
  local graced_visit = thing.away and thing.visited or thing.graced_visit
  local before = thing.away and math.min(thing.hidden, from) or from
  begin_grace(thing, thing.cursor == '' and before or math.min(thing.before, before))
  thing.graced_visit, thing.outage_ms, thing.away = graced_visit, till - from, false
  if thing.seen >= till - margin then
    thing.back = math.max(run, till) -- another caller came first and did not report it
  end
end

local function open_grace(thing)
  local saved = redis.call('HMGET', thing.meta, 'ttl', 'visited', 'hidden', 'back', 'before', 'cursor',
    'graced_visit', 'extended_until')
  thing.longest, thing.visited, thing.hidden = tonumber(saved[1] or 0), tonumber(saved[2] or 0), tonumber(saved[3] or 0)
  thing.back, thing.before, thing.cursor = tonumber(saved[4] or 0), tonumber(saved[5] or 0), saved[6] or ''
  thing.graced_visit, thing.extended_until = tonumber(saved[7] or 0), tonumber(saved[8] or 0)
  if thing.held_anew then
    thing.hold, thing.holding = 0, false
    begin_grace(thing, 0)
    return
  end
  -- The store or all workers were away, and no call has noticed it yet.
  thing.away = thing.visited > thing.graced_visit and thing.now - math.max(thing.visited, thing.back) > AWAY_MS
  note_outage(thing)
end

local function close_grace(thing)
  if thing.grace_changed then
    redis.call('HSET', thing.meta, 'back', text_of(thing.back), 'before', text_of(thing.before), 'cursor', thing.cursor,
      'graced_visit', text_of(thing.graced_visit), 'extended_until', text_of(thing.extended_until))
  end
  if thing.refuted then
    redis.call('HSET', thing.meta, 'refuted', text_of(thing.refuted))
  end
  if thing.outage_ms then
    redis.call('HSET', thing.meta, 'outage_ms', text_of(thing.outage_ms))
  end
  if thing.now - thing.seen > PAUSE_MS then
    redis.call('HSET', thing.meta, 'run', text_of(thing.now))
  end
end

--- Tell whether all deadlines are moved; if not, a reader runs the script `settle` first.
local function settled(thing)
  return thing.cursor == '' and not thing.away
end

--- Count the instances that are late by the last heartbeat and have one lease more.
local function count_extended(thing, extended)
  return thing.now < thing.extended_until and redis.call('ZCOUNT', extended, '-inf', text_of(thing.now)) or 0
end
