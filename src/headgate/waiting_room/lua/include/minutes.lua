--- Measures how fast users are admitted, and keeps one record a minute for monitoring.
--@include queue
--@include recent_calls
local MINUTE_MS = 60000
local MINUTES_KEPT = 10080
local RATE_PARTS = 20
local TOTALS = { 'entered', 'admitted', 'issued', 'expired', 'redeemed', 'finished', 'left', 'abandoned', 'moved' }

--- Record the calls of this step, and for how long there has been a line; gives the queue time since the last step.
local function measure_flow(queue, length, called)
  local meta = queue.keys.meta
  local at = tonumber(redis.call('HGET', meta, 'flow_at') or queue.time)
  local passed = queue.time - at
  if length > 0 then
    queue.flow_age = math.min(queue.flow_age + passed, 60 * FLOW_MS)
  end
  redis.call('HSET', meta, 'flow_at', text_of(queue.time), 'flow_age', text_of(queue.flow_age))
  if called > 0 then
    local calls, _, window = recent_calls(queue)
    local last = calls[#calls]
    if last and queue.now - last.at < window / RATE_PARTS then
      last.number = last.number + called
    else
      calls[#calls + 1] = { at = queue.now, number = called }
    end
    write_recent_calls(queue, calls)
  end
  return passed
end

--- Write the record of the minute that has passed, if one has: what happened in it, and the figures at its end.
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
