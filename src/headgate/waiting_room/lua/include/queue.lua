--- A queue as scripts see it: the thing's clock, its policy, and queue time.
---
--- Deadlines are in queue time, which advances by at most two seconds a visit. A queue that is not empty is visited
--- every second, so this is real time while all is well; through an outage of the store or of all workers it stands
--- still, and nobody is abandoned and no server is cleared because nobody could have come.
--@include clock
--@include emit
--@include hint
local VISIT_MS = 2000
local LOOK_MS = 250
local EVENTS_KEPT = 10000
local LOST_MS = 3600000
local FLOW_MS = 60000
local RATE_MS = 5000
--- For how long nobody is called after some data may have been lost, and after all of it was: whose place was lost comes
--- back with a place token first.
local RETURN_MS, RETURN_ALL_MS = 3000, 10000
local FORECAST_FORM = '<I4dddddddddd'

--- What the policy says is read when it is first asked for: somebody who only waits needs none of it.
local function read_policy(queue)
  setmetatable(queue, nil)
  local policy = redis.call('HMGET', queue.keys.policy, 'fixed', 'capacity', 'rate', 'burst', 'batch', 'tick', 'ticket',
    'session', 'keep', 'reentry', 'opens', 'packed', 'finished')
  queue.fixed, queue.capacity, queue.rate = policy[1] == '1', tonumber(policy[2]), tonumber(policy[3])
  queue.burst, queue.batch, queue.tick_ms = tonumber(policy[4]), tonumber(policy[5]), tonumber(policy[6])
  queue.ticket_ms, queue.session_ms, queue.keep_ms = tonumber(policy[7]), tonumber(policy[8]), tonumber(policy[9])
  queue.reentry_ms, queue.opens, queue.packed = tonumber(policy[10]), tonumber(policy[11]), policy[12] == '1'
  queue.finished_ms = tonumber(policy[13])
end

local POLICY_LATER = {
  __index = function(queue, name)
    read_policy(queue)
    return queue[name]
  end,
}

local function open_queue(keys, context)
  local saved = redis.call('HMGET', keys.meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was',
    'generation', 'deleted', 'queue_at', 'queue_time', 'paused', 'draining', 'serving', 'visit_by', 'lost',
    'flow_age', 'turnover', 'forecast', 'served', 'calls_from')
  local thing = open_thing(keys.meta, context, 0, saved)
  local policy = redis.call('HMGET', keys.policy, 'version', 'grace', 'longest')
  local at, time = tonumber(saved[11] or thing.now), tonumber(saved[12] or 0)
  local passed = thing.now - at
  time = time + math.max(0, math.min(passed, VISIT_MS))
  local queue = {
    keys = keys, thing = thing, now = thing.now, time = time, seconds = math.floor(time / 1000), epoch = thing.epoch,
    generation = tonumber(saved[9] or 1), deleted = saved[10] == '1', paused = saved[13] == '1',
    draining = saved[14] == '1', serving = tonumber(saved[15] or 0), unattended = thing.now > tonumber(saved[16] or 0),
    lost = tonumber(saved[17] or 0),
    flow_age = tonumber(saved[18] or 0), turnover = saved[19] or '', forecast = saved[20], counts = {},
    served = tonumber(saved[21] or 0), calls_from = tonumber(saved[22] or 0),
    version = policy[1], grace_ms = tonumber(policy[2]), longest = tonumber(policy[3]) or false,
    together = false, length = false,
    as_saved = thing.state == 'same' and passed > 0 and passed < LOOK_MS and thing.last,
  }
  if thing.state == 'uncertain' then
    queue.lost = thing.now
    queue.served = math.max(queue.served, queue.serving)
    queue.calls_from = math.max(queue.calls_from, time + RETURN_MS)
  end
  queue.served_as_saved = tonumber(saved[21] or 0)
  return setmetatable(queue, POLICY_LATER)
end

--- Why a queue cannot be used at all, or nil. One that nobody deleted was lost, and whoever remembers it writes it
--- back.
local function unknown(queue)
  if queue.version then
    return nil
  end
  return { err = queue.deleted and 'QUEUE_UNKNOWN' or 'QUEUE_LOST' }
end

local function refuse_all(refusal, first, last, width)
  local replies = {}
  for _ = first, last, width do
    replies[#replies + 1] = refusal
  end
  return replies
end

local function count(queue, name, more)
  queue.counts[name] = (queue.counts[name] or 0) + more
end

local function recently_lost(queue)
  return queue.lost > 0 and queue.now - queue.lost < LOST_MS
end

--- Tell whether nobody is called for now: an operator paused the queue, or who lost their place may still come back.
local function standing(queue)
  return queue.paused or queue.time < queue.calls_from
end

--- How many were called lately: a list of moments and numbers, in parts of the last few seconds or of one tick.
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

--- How many a second were called in the last few seconds.
local function flow(queue)
  if standing(queue) then
    return 0
  end
  local _, sum, window = recent_calls(queue)
  return sum * 1000 / window
end

--- What to expect, packed: seats that are free for those in front; how many a second come in after them in the long
--- run, how many departures that is known from, and for how many seconds a seat is taken; how many a second the policy
--- lets in at most, and how many of those behind can hardly be exceeded; seconds from one tick to the next; how many a
--- second come in at first, in how many seconds that slows down as seats are held by who is late, by which share what is
--- supposed of them may be wrong, and for how many seconds they hold one.
local function forecast(queue)
  -- Another version of ours may have written it in another form: it is unknown then, until it is written anew.
  if queue.forecast and #queue.forecast == struct.size(FORECAST_FORM) then
    return queue.forecast
  end
  return struct.pack(FORECAST_FORM, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
end

--- For how many seconds somebody at this rank will wait, as far as is known; else 0. Nobody knows the end of a pause.
local function expected_wait(queue, rank)
  if standing(queue) then
    return 0
  end
  local free, turnover, _, _, pace, _, _, first, slowing = struct.unpack(FORECAST_FORM, forecast(queue))
  local filling = math.min(rank, free)
  local behind = rank - filling
  if (filling > 0 and pace <= 0) or (behind > 0 and turnover <= 0) then
    return 0
  end
  local seconds = filling > 0 and filling / pace or 0
  if behind > 0 then
    local quick = math.max(0, first - turnover) * slowing
    if behind < quick then
      return seconds - slowing * math.log(1 - behind / (first * slowing))
    end
    seconds = seconds + (behind - quick) / turnover + (quick > 0 and slowing * math.log(first / turnover) or 0)
  end
  return seconds
end

--- The last place that was called before data was lost: whoever came up to it is not put back, unless they are known not
--- to have entered. What is called since is no such limit: those in front may come back later than those behind.
local function note_served(queue, served)
  queue.served = math.max(queue.served, served)
  queue.serving = math.max(queue.serving, served)
end

local function close_queue(queue)
  close_thing(queue.thing, 'queue_at', text_of(queue.now), 'queue_time', text_of(queue.time),
    'generation', text_of(queue.generation), 'serving', text_of(queue.serving), 'lost', text_of(queue.lost))
  if queue.served ~= queue.served_as_saved or queue.thing.state ~= 'same' then
    redis.call('HSET', queue.keys.meta, 'served', text_of(queue.served), 'calls_from', text_of(queue.calls_from))
  end
  local said = {}
  for name, more in pairs(queue.counts) do
    redis.call('HINCRBY', queue.keys.meta, name .. '_total', more)
    said[#said + 1] = name
    said[#said + 1] = more
  end
  if #said > 0 then
    emit(queue.keys.events, EVENTS_KEPT, 'at', text_of(queue.now), unpack(said))
  end
end

--- Close a queue that people only asked about. If nothing of it changed, the clock is not written for a moment either:
--- whoever comes next reckons from the same point and gets the same time.
local function close_asked(queue, serving, generation)
  if queue.as_saved ~= queue.thing.last or queue.served ~= queue.served_as_saved or queue.serving ~= serving
    or queue.generation ~= generation or next(queue.counts) then
    close_queue(queue)
  end
end
