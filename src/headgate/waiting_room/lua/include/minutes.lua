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
local MANY_FREED = 400
local QUICKEST_FADE = 0.25

local function measure_turnover(queue, passed, before, after, free)
  local saved, numbers = queue.turnover, {}
  for number in string.gmatch(saved, '%S+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  local freed, taken_ms, taken = numbers[1] or 0, numbers[2] or 0, numbers[3] or before.taken - before.held
  local came, held_ms, held = numbers[4] or 0, numbers[5] or 0, numbers[6] or before.held
  local fading = math.exp(-passed / (FLOW_MS * math.max(QUICKEST_FADE, math.min(1, MANY_FREED / math.max(freed, 1)))))
  freed = freed * fading + math.max(0, taken + held - before.taken - queue.vanished.taken)
  taken_ms = taken_ms * fading + taken * passed
  came = came * fading + math.max(0, held - before.held - queue.vanished.held)
  held_ms = held_ms * fading + held * passed
  local limit = math.min(queue.rate or math.huge, queue.batch * 1000 / queue.tick_ms)
  if queue.paused or (queue.opens and queue.thing.raw < queue.opens) then
    limit = 0
  end
  local seats, cycle_ms, rate = after.taken + free, 0, 0
  local coming_ms = came >= 1 and held_ms / came or 0
  if freed >= 1 and taken_ms > 0 then
    cycle_ms = coming_ms + taken_ms / freed
    rate = math.min(limit, seats * 1000 / cycle_ms)
  end
  -- With so few departures seen, many more may follow in the same time; hardly more than these.
  local fastest = limit
  if taken_ms + held_ms > 0 then
    fastest = math.min(limit, seats * 1000 * (freed + 2 + 2 * math.sqrt(freed + 1)) / (taken_ms + held_ms))
  end
  redis.call('HSET', queue.keys.meta, 'turnover', string.format('%.6f %.6f %.0f %.6f %.6f %.0f', freed, taken_ms,
    after.taken - after.held, came, held_ms, after.held), 'forecast', struct.pack(FORECAST_FORM,
    math.min(free, 4294967295), rate, freed, cycle_ms / 1000, limit, fastest, queue.tick_ms / 1000))
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
