--- What was measured: how fast people are admitted, and one record a minute for monitoring.
--@include queue
local MINUTE_MS = 60000
local MINUTES_KEPT = 10080
local TOTALS = { 'entered', 'admitted', 'issued', 'expired', 'redeemed', 'finished', 'left', 'abandoned', 'moved' }

--- Keep a sum of admissions that fades over a minute; time in which nobody waited does not count.
local function measure_flow(queue, length, called)
  local at = tonumber(redis.call('HGET', queue.keys.meta, 'flow_at') or queue.time)
  local passed = queue.time - at
  if length > 0 then
    queue.flow_sum = queue.flow_sum * math.exp(-passed / FLOW_MS) + called
    queue.flow_age = math.min(queue.flow_age + passed, 60 * FLOW_MS)
  end
  redis.call('HSET', queue.keys.meta, 'flow_at', text_of(queue.time), 'flow_sum', string.format('%.6f', queue.flow_sum),
    'flow_age', text_of(queue.flow_age))
  return passed
end

--- Filling seats that were free anyway says nothing of those further behind: they get seats that somebody gives up. So
--- how long a seat is taken is measured by itself, in its two parts: held until its owner comes in, then taken until
--- they go. Each part is its time over all seats by the number of its ends, which is right however few have ended yet.
--- Of many departures the latest tell enough, so the more there are, the faster the past fades. Seats that vanish with a
--- dead server are no departures: those who sat there did not make room for anybody.
---
--- Who was called and does not come holds a seat for the whole time of a ticket, and more and more seats are held so until
--- the first of these tickets ends. That is foreseen: whoever is not there LATE_MS after the call is late, the share of the
--- late is known soon, and until it is seen when they come they are taken to hold their seats to the end. Before anybody
--- was called, one in twenty is taken to be late.
local MANY_FREED = 400
local QUICKEST_FADE = 0.25
local LATE_MS = 2000
local SUPPOSED_LATE = 1
local SUPPOSED_CALLS = 20

--- Say how those behave who are called: how long they take who come soon, which share is late, for how many ms more, and
--- by how many ms for each call that may be wrong.
local function behaviour(longest, seen)
  local calls, late = seen.prompt + seen.late, seen.late + SUPPOSED_LATE
  local lasts = math.min(longest, (seen.late_ms + longest) / (seen.late_ends + 1))
  return calls >= 1 and seen.prompt_ms / calls or 0, late / (calls + SUPPOSED_CALLS), lasts,
    math.sqrt(late) / (calls + SUPPOSED_CALLS) * lasts
end

local function measure_turnover(queue, passed, before, after, free)
  local numbers = {}
  for number in string.gmatch(queue.turnover, '%S+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  local taken, held, late = numbers[3] or before.taken - before.held, numbers[6] or before.held, numbers[10] or 0
  local fading = math.exp(-passed / (FLOW_MS * math.max(QUICKEST_FADE, math.min(1, MANY_FREED / math.max(numbers[1] or 0, 1)))))

  local late_ms = math.min(LATE_MS, queue.ticket_ms / 4)
  local late_to = queue.time + queue.ticket_ms - late_ms -- the deadline of who was called so long ago
  local late_now = redis.call('ZCOUNT', queue.keys.holds, '-inf', text_of(late_to))
  local became_late = redis.call('ZCOUNT', queue.keys.holds, '(' .. text_of(late_to - passed), text_of(late_to))
  local ends = math.max(0, held - before.held - queue.vanished.held)
  local late_ends = math.min(ends, math.max(0, late + became_late - late_now))

  -- Who came since the last step held a seat until then and sat in it from then on; who left did so half-way, as a rule.
  local noted = redis.call('HMGET', queue.keys.meta, 'came', 'came_ms')
  local came = math.min(ends, tonumber(noted[1] or 0))
  local came_ms = math.min(came * passed, tonumber(noted[2] or 0))
  if noted[1] then
    redis.call('HDEL', queue.keys.meta, 'came', 'came_ms')
  end
  local gone = math.max(0, taken + held - before.taken - queue.vanished.taken)
  local left = math.max(0, gone - (ends - came))
  local sat_ms = came * passed - came_ms

  local freed = (numbers[1] or 0) * fading + gone
  local taken_ms = (numbers[2] or 0) * fading + math.max(0, taken * passed + sat_ms - left * passed / 2)
  local seen = {
    prompt = (numbers[4] or 0) * fading + ends - late_ends, late = (numbers[7] or 0) * fading + became_late,
    prompt_ms = (numbers[5] or 0) * fading + math.max(0, (held - late) * passed - sat_ms),
    late_ms = (numbers[8] or 0) * fading + late * passed, late_ends = (numbers[9] or 0) * fading + late_ends,
  }

  local limit = math.min(queue.rate or math.huge, queue.batch * 1000 / queue.tick_ms)
  if queue.paused or (queue.opens and queue.thing.raw < queue.opens) then
    limit = 0
  end
  local seats, turn_ms, rate, first, slowing_ms, doubt, lasts = after.taken + free, 0, 0, 0, 0, 0, 0
  if freed >= 1 and taken_ms > 0 then
    local prompt_ms, share, doubt_ms
    prompt_ms, share, lasts, doubt_ms = behaviour(math.max(0, queue.ticket_ms - late_ms), seen)
    turn_ms = prompt_ms + taken_ms / freed
    rate = math.min(limit, seats * 1000 / (turn_ms + share * lasts))
    first = math.min(limit, (seats - late_now) * 1000 / turn_ms)
    slowing_ms, doubt = turn_ms / share, doubt_ms / (turn_ms + share * lasts)
  end
  -- With so few departures seen, many more may follow in the same time; hardly more than these.
  local fastest, all_ms = limit, taken_ms + seen.prompt_ms + seen.late_ms
  if all_ms > 0 then
    fastest = math.min(limit, seats * 1000 * (freed + 2 + 2 * math.sqrt(freed + 1)) / all_ms)
  end
  redis.call('HSET', queue.keys.meta, 'turnover', string.format('%.6f %.6f %.0f %.6f %.6f %.0f %.6f %.6f %.6f %.0f',
    freed, taken_ms, after.taken - after.held, seen.prompt, seen.prompt_ms, after.held, seen.late, seen.late_ms,
    seen.late_ends, late_now), 'forecast', struct.pack(FORECAST_FORM, math.min(free, 4294967295), rate, freed,
    turn_ms / 1000, limit, fastest, queue.tick_ms / 1000, first, slowing_ms / 1000, doubt, lasts / 1000))
end

--- Close the minute that has passed, if one has: what happened in it, and how things stood at its end.
local function note_minute(queue, history, called)
  local meta = queue.keys.meta
  local minute = math.floor(queue.now / MINUTE_MS)
  local waited, missed, predicted = 0, 0, 0
  for i = 1, #called, 4 do
    waited = waited + called[i + 1]
    if called[i + 2] > 0 then
      missed = missed + math.abs(called[i + 2] * 1000 - called[i + 1])
      predicted = predicted + 1
    end
  end
  local saved = redis.call('HMGET', meta, 'minute', 'minute_waited', 'minute_missed', 'minute_predicted',
    'minute_totals')
  waited, missed = waited + tonumber(saved[2] or 0), missed + tonumber(saved[3] or 0)
  predicted = predicted + tonumber(saved[4] or 0)
  local totals = saved[5]
  if tonumber(saved[1] or 0) ~= minute then
    local names = {}
    for i, name in ipairs(TOTALS) do
      names[i] = name .. '_total'
    end
    local now = redis.call('HMGET', meta, unpack(names))
    if totals then
      local before, record = cjson.decode(totals), {}
      for i, name in ipairs(TOTALS) do
        record[#record + 1] = name
        record[#record + 1] = text_of(tonumber(now[i] or 0) - (before[i] or 0))
      end
      redis.call('XADD', history, 'MAXLEN', '~', MINUTES_KEPT, '*', 'minute', text_of(tonumber(saved[1]) * MINUTE_MS),
        'waiting', redis.call('ZCARD', queue.keys.waiting), 'away', redis.call('ZCARD', queue.keys.away),
        'holds', redis.call('ZCARD', queue.keys.holds), 'sessions', redis.call('HLEN', queue.keys.sessions),
        'waitedMs', text_of(waited), 'etaErrorMs', text_of(missed), 'etaCount', text_of(predicted), unpack(record))
    end
    waited, missed, predicted = 0, 0, 0
    for i in ipairs(TOTALS) do
      now[i] = tonumber(now[i] or 0)
    end
    totals = cjson.encode(now)
  end
  redis.call('HSET', meta, 'minute', text_of(minute), 'minute_waited', text_of(waited),
    'minute_missed', text_of(missed), 'minute_predicted', text_of(predicted), 'minute_totals', totals)
end
