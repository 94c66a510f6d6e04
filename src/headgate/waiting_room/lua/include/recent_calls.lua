--- The calls of the last few seconds (or of one tick, if that is longer), kept in meta as `ms:number ms:number …`.
--@include queue
local RATE_MS = 5000

--- Give the list of moments and numbers, their sum, and the window in ms.
local function recent_calls(queue)
  local window = math.max(RATE_MS, queue.tick_ms)
  local calls, sum = {}, 0
  for at, number in string.gmatch(redis.call('HGET', queue.keys.meta, 'recent') or '', '(%d+):(%d+)') do
    if tonumber(at) > queue.now - window then
      calls[#calls + 1] = { at = tonumber(at), number = tonumber(number) }
      sum = sum + tonumber(number)
    end
  end
  return calls, sum, window
end

local function write_recent_calls(queue, calls)
  local words = {}
  for i, call in ipairs(calls) do
    words[i] = text_of(call.at) .. ':' .. text_of(call.number)
  end
  redis.call('HSET', queue.keys.meta, 'recent', table.concat(words, ' '))
end

--- Give the number of calls a second.
local function flow(queue)
  if calls_suspended(queue) then
    return 0
  end
  local _, sum, window = recent_calls(queue)
  return sum * 1000 / window
end
