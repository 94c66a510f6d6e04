--- A thing's steady clock, its numbers that never repeat, and the notice that history may have been lost.
---
--- TIME is a wall clock and can step. now = TIME + offset never goes back: when TIME does, offset grows by as much. When
--- TIME is more than 5 s ahead of what the caller expects by its own monotonic clock, or a caller has seen such a step
--- lately, the thing holds: for one lease nothing expires, so that owners who are alive have time to say so.
---
--- After TIME was put back, a caller that has not read it since expects too much, and would not notice when it is put
--- right again. Callers read it every 2 s; until SETTLED_MS later nobody is believed, and a gap of more than 5 s between two
--- visits counts as a step. Each such gap brings that end nearer by 5 s, so a thing that is rarely visited holds twice at most.
---
--- The context names the primary's replication id. Another id than the thing last saw means a restart, a failover, a
--- restore or a moved slot: the last writes may be gone, and nobody could say that they are alive meanwhile. The thing is
--- then uncertain: new epoch, numbers far ahead, and it holds for one lease too.
---
--- A script that reads more of meta hands over what it read, with these fields first: replid raw offset last epoch hold step was.
--@include read_context
--@include server_time
--@include text_of
local STEP_MS = 5000
local SAME_STEP_MS = 15000
local SETTLED_MS = 10000
local JUMP_US = 60000000

--- Tell whether the clock may have stepped forward since the last visit without the caller knowing.
local function doubtful(thing, seen)
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
  -- For whoever asks whether the store was away: when the last visit was, and what the caller knows of it.
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
    -- Callers may hear of a new id one after the other; who still names the one before it changes nothing.
    if saved[1] ~= replid and saved[8] ~= replid then
      thing.state, thing.replid, thing.was = 'uncertain', replid, saved[1]
      thing.last = math.max(thing.last, thing.us) + JUMP_US
      thing.hold, thing.held_anew = math.max(thing.hold, thing.now + (lease_ms or 0)), true
    end
    -- Several callers report one step, each when it looked. One that came after the last visit is nobody's yet.
    local leapt = raw - seen > STEP_MS and (doubtful(thing, seen) or ahead or undone)
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
