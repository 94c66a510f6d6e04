--- After an outage everybody has one lease of their own, counted from the return.
---
--- The return is noticed by whoever comes first: by a new replication id or a clock that stepped, because the store gave the
--- caller no answer or took no writes for SHORTEST_OUTAGE_MS or more, or because no worker has looked for AWAY_MS (then nobody
--- could beat, as far as we know; once for each such absence). A pass over the service, in bounded steps, then moves each
--- deadline to one lease after the return; until it is complete nobody is dead. The deadline that the last heartbeat gave is
--- kept in `extended` until the next one. Who was seen dead before stays so: `hidden` is the last time that somebody looked
--- and took whoever was late for dead.
---
--- A caller's report that the store was away counts only if no visit of the service is known to be in it: `run` is when
--- the latest visits without a pause of PAUSE_MS began, `refuted` the visit that refuted a report. Each moment counts once,
--- and whoever was not heard of since the return before gets no second lease, only as much time as the outage took: a caller
--- with a bad connection cannot keep the dead.
local AWAY_MS = 6000
local SHORTEST_OUTAGE_MS = 1000
local PAUSE_MS = 500

local function begin_grace(thing, before)
  thing.back, thing.before, thing.cursor, thing.graced_visit = thing.now, before, '0', thing.visited
  thing.outage_ms = 0
  thing.extended_until = math.max(thing.extended_until, thing.now + thing.longest)
  thing.grace_changed = true
end

--- Begin a grace if the store left the caller's requests, or this very call, unanswered.
local function hear_of_outage(thing)
  local from, till = thing.outage_from, thing.outage_until
  if thing.expected > 0 and thing.raw - thing.expected >= SHORTEST_OUTAGE_MS then
    from = till and thing.expected - till < SHORTEST_OUTAGE_MS and from or thing.expected
    till = thing.raw
  end
  if not from then
    return
  end
  -- What was before the last return has counted.
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
    thing.back = math.max(run, till) -- somebody came before us who did not report it
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
  -- The store or all workers were away, and nobody has noticed it yet.
  thing.away = thing.visited > thing.graced_visit and thing.now - math.max(thing.visited, thing.back) > AWAY_MS
  hear_of_outage(thing)
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

--- Tell whether everybody has the deadline that is theirs; a reader lets the script `settle` go on if not.
local function settled(thing)
  return thing.cursor == '' and not thing.away
end

--- Tell whether whoever is late now was late when somebody looked before; where no worker ever ran, nobody asks.
local function seen_dead(thing, deadlines)
  local last = redis.call('ZREVRANGEBYSCORE', deadlines, text_of(thing.now), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return thing.visited == 0 or tonumber(last[2]) <= thing.hidden
end

--- Take a step of the pass; false while there is more to do.
local function settle(thing, service, most)
  if thing.away then
    begin_grace(thing, thing.hidden)
    thing.away = false
  end
  if thing.cursor == '' then
    return true
  end
  local outage_ms = thing.outage_ms or tonumber(redis.call('HGET', thing.meta, 'outage_ms') or 0)
  local page = redis.call('HSCAN', service.states, thing.cursor, 'COUNT', most)
  for i = 1, #page[2], 2 do
    local id, until_ms = page[2][i], thing.back + tonumber(string.match(page[2][i + 1], '^%d+ (%d+) '))
    local deadline = tonumber(redis.call('ZSCORE', service.deadlines, id) or 0)
    if outage_ms > 0 and redis.call('ZSCORE', service.extended, id) then
      until_ms = math.min(until_ms, deadline + outage_ms)
    end
    if deadline > thing.before and deadline < until_ms then
      redis.call('ZADD', service.extended, 'NX', text_of(deadline), id)
      redis.call('ZADD', service.deadlines, text_of(until_ms), id)
    end
  end
  thing.cursor, thing.grace_changed = page[1] ~= '0' and page[1] or '', true
  return thing.cursor == ''
end

--- Count who is late by the last heartbeat and has a lease more.
local function count_extended(thing, extended)
  return thing.now < thing.extended_until and redis.call('ZCOUNT', extended, '-inf', text_of(thing.now)) or 0
end

--- Forget the deadlines before an outage when the last lease after it has ended.
local function drop_extensions(thing, extended)
  if thing.extended_until > 0 and thing.now >= thing.extended_until then
    redis.call('UNLINK', extended)
    thing.extended_until, thing.grace_changed = 0, true
  end
end
