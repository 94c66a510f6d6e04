--- A queue as scripts see it: the thing's clock, its policy, and queue time.
---
--- Deadlines are in queue time, which advances by at most two seconds a visit. A queue that is not empty is visited
--- every second, so queue time is real time as a rule. Through an outage of the store or of all workers it stands
--- still, so that no user is abandoned and no server is cleared for an absence that the outage caused.
--@include clock
--@include emit
--@include hint
local VISIT_MS = 2000
local UNWRITTEN_MS = 250
local EVENTS_KEPT = 10000
local FLOW_MS = 60000
--- The time without calls after some data may have been lost, and after all of it was: users whose place was lost come
--- back with a place token first.
local RETURN_MS, RETURN_ALL_MS = 3000, 10000

--- Read the rest of the policy when a field of it is first used: a request of a user who waits needs none of it.
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
    collected = false, length = false,
    as_saved = thing.state == 'same' and passed > 0 and passed < UNWRITTEN_MS and thing.last,
  }
  if thing.state == 'uncertain' then
    queue.lost = thing.now
    queue.served = math.max(queue.served, queue.serving)
    queue.calls_from = math.max(queue.calls_from, time + RETURN_MS)
  end
  queue.served_as_saved = tonumber(saved[21] or 0)
  return setmetatable(queue, POLICY_LATER)
end

--- Give the refusal for a queue that does not exist, or nil. One that no operator deleted was lost, and the processes
--- that remember it write it back.
local function missing_queue(queue)
  if queue.version then
    return nil
  end
  return { err = queue.deleted and 'QUEUE_UNKNOWN' or 'QUEUE_LOST' }
end

--- Repeat a refusal for each item of a batch, whose arguments go from `first` to `last` in steps of `width`.
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

--- Tell whether no user is called for now: the queue is paused, or users who lost their place may still come back.
local function calls_suspended(queue)
  return queue.paused or queue.time < queue.calls_from
end

local function close_queue(queue)
  close_thing(queue.thing, 'queue_at', text_of(queue.now), 'queue_time', text_of(queue.time),
    'generation', text_of(queue.generation), 'serving', text_of(queue.serving), 'lost', text_of(queue.lost))
  if queue.served ~= queue.served_as_saved or queue.thing.state ~= 'same' then
    redis.call('HSET', queue.keys.meta, 'served', text_of(queue.served), 'calls_from', text_of(queue.calls_from))
  end
  local event = {}
  for name, more in pairs(queue.counts) do
    redis.call('HINCRBY', queue.keys.meta, name .. '_total', more)
    event[#event + 1] = name
    event[#event + 1] = more
  end
  if #event > 0 then
    emit(queue.keys.events, EVENTS_KEPT, 'at', text_of(queue.now), unpack(event))
  end
end
