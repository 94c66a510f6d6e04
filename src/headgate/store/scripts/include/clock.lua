--- A thing's steady clock, its numbers that never repeat, and the detection of a possible loss of data.
---
--- TIME is a wall clock and can step. now = TIME + offset never goes back: when TIME does, offset grows by as much.
--- When TIME is more than 5 s ahead of the caller's expected time (by its own monotonic clock), or a caller has seen
--- such a step lately, the thing holds: for one lease nothing expires, so that live owners have time to renew.
---
--- After TIME was put back, a caller that has not read it since expects too much, and would not notice when it is put
--- right again. Callers read TIME every 2 s, so the thing ignores the callers' expected time for 10 s (SETTLED_MS), and
--- counts a gap of more than 5 s between two visits as a step. Each such gap shortens these 10 s by 5 s, so a thing
--- that is rarely visited holds twice at most.
---
--- The context names the primary's replication id. Another id than the thing last saw means a restart, a failover, a
--- restore or a moved slot: the last writes may be gone, and owners could not renew meanwhile. The thing is then
--- uncertain: it gets a new epoch, numbers far ahead, and holds for one lease too.
---
--- A script that needs more fields of meta reads them itself and passes them as `saved`, with these fields first:
--- replid raw offset last epoch hold step was.
--@include read_context
--@include server_time
--@include text_of
local STEP_MS = 5000
local SAME_STEP_MS = 15000
local SETTLED_MS = 10000
local JUMP_US = 60000000

--- Tell whether the clock may have stepped forward since the last visit without the caller noticing.
local function may_have_stepped(thing, seen)
  if thing.turned then
    return true
  end
  local turned = tonumber(redis.call('HGET', thing.meta, 'turned') or 0)
  if turned > 0 and seen - turned < SETTLED_MS then
    thing.turned = turned + thing.raw - seen - STEP_MS
    return true
  end
  return false
end

local function open_thing(meta, context, lease_ms, saved)
  local replid, expected, step, turned, outage_from, outage_until = read_context(context)
  saved = saved or redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was')
  local raw, raw_us = server_time()
  local thing = {
    meta = meta, raw = raw, replid = saved[1] or replid, was = saved[8] or '', state = 'same', epoch = saved[5],
    offset = tonumber(saved[3] or 0), last = tonumber(saved[4] or 0),
    hold = tonumber(saved[6] or 0), step = math.min(tonumber(saved[7] or 0), raw), saved = saved,
  }
  local seen = tonumber(saved[2] or 0)
  if raw < seen then
    thing.offset = thing.offset + seen - raw
  end
  thing.now = raw + thing.offset
  -- For scripts that detect outages: the time of the last visit, and the caller's expected time and outage.
  thing.seen, thing.expected = seen + tonumber(saved[3] or 0), expected
  thing.outage_from, thing.outage_until = outage_from, outage_until
  thing.us = raw_us + thing.offset * 1000

  -- However little it was put back: with the offset that makes up for it, the next step forward is that much longer.
  if seen > raw or expected - raw > STEP_MS or turned > 0 and raw - turned < SETTLED_MS then
    thing.turned = raw
  end
  local ahead = expected > 0 and raw - expected > STEP_MS
  local undone = step > raw -- the clock was put back since, perhaps by less than it had stepped
  if ahead then
    step = raw
  elseif undone then
    step = 0
  end
  if not saved[1] then
    thing.state, thing.step = 'new', step
  else
    -- Callers learn of a new id one after the other; one that still names the previous id changes nothing.
    if saved[1] ~= replid and saved[8] ~= replid then
      thing.state, thing.replid, thing.was = 'uncertain', replid, saved[1]
      thing.last = math.max(thing.last, thing.us) + JUMP_US
      thing.hold, thing.held_anew = math.max(thing.hold, thing.now + (lease_ms or 0)), true
    end
    -- Several callers report one step, each at another time. A step after the last visit was reported by none yet.
    local leapt = raw - seen > STEP_MS and (may_have_stepped(thing, seen) or ahead or undone)
    step = leapt and raw or step
    if leapt or step > thing.step + (ahead and SAME_STEP_MS or STEP_MS) then
      thing.step, thing.hold = step, math.max(thing.hold, thing.now + (lease_ms or 0))
      thing.held_anew = true
    end
  end
  if thing.state ~= 'same' then
    thing.last = math.max(thing.last + 1, thing.us)
    thing.epoch = text_of(thing.last)
  end
  thing.holding = thing.now < thing.hold
  return thing
end

local function next_number(thing)
  thing.last = math.max(thing.last + 1, thing.us)
  return thing.last
end

--- Write meta back, as a rule only the time; further fields and values go along in the same write.
local function close_thing(thing, ...)
  local saved = thing.saved
  if thing.turned then
    redis.call('HSET', thing.meta, 'turned', text_of(thing.turned))
  end
  if thing.state == 'same' and thing.hold == tonumber(saved[6]) and thing.step == tonumber(saved[7])
    and thing.offset == tonumber(saved[3]) then
    redis.call('HSET', thing.meta, 'raw', text_of(thing.raw), 'last', text_of(thing.last), ...)
    return
  end
  redis.call('HSET', thing.meta, 'replid', thing.replid, 'was', thing.was, 'raw', text_of(thing.raw),
    'offset', text_of(thing.offset), 'last', text_of(thing.last), 'epoch', thing.epoch,
    'hold', text_of(thing.hold), 'step', text_of(thing.step), ...)
end
