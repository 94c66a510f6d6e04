--- A queue as scripts see it: the thing's clock, its policy, and queue time.
---
--- Deadlines are in queue time, which advances by at most two seconds a visit. A queue that is not empty is visited
--- every second, so this is real time while all is well; through an outage of the store or of all workers it stands
--- still, and nobody is abandoned and no server is cleared because nobody could have come.
--@include clock
--@include emit
--@include hint
local VISIT_MS = 2000
local EVENTS_KEPT = 10000
local LOST_MS = 3600000
local FLOW_MS = 60000

local function open_queue(keys, context)
  local thing = open_thing(keys.meta, context, 0)
  local saved = redis.call('HMGET', keys.meta, 'generation', 'deleted', 'queue_at', 'queue_time', 'paused', 'draining',
    'serving', 'visit_by', 'lost', 'flow_sum', 'flow_age')
  local policy = redis.call('HMGET', keys.policy, 'version', 'fixed', 'capacity', 'rate', 'burst', 'batch', 'tick',
    'ticket', 'session', 'grace', 'keep', 'reentry', 'longest', 'opens', 'packed', 'finished')
  local at, time = tonumber(saved[3] or thing.now), tonumber(saved[4] or 0)
  time = time + math.max(0, math.min(thing.now - at, VISIT_MS))
  local queue = {
    keys = keys, thing = thing, now = thing.now, time = time, seconds = math.floor(time / 1000), epoch = thing.epoch,
    generation = tonumber(saved[1] or 1), deleted = saved[2] == '1', paused = saved[5] == '1',
    draining = saved[6] == '1', serving = tonumber(saved[7] or 0), unattended = thing.now > tonumber(saved[8] or 0),
    lost = tonumber(saved[9] or 0),
    flow_sum = tonumber(saved[10] or 0), flow_age = tonumber(saved[11] or 0), counts = {},
    version = policy[1], fixed = policy[2] == '1', capacity = tonumber(policy[3]), rate = tonumber(policy[4]),
    burst = tonumber(policy[5]), batch = tonumber(policy[6]), tick_ms = tonumber(policy[7]),
    ticket_ms = tonumber(policy[8]), session_ms = tonumber(policy[9]), grace_ms = tonumber(policy[10]),
    keep_ms = tonumber(policy[11]), reentry_ms = tonumber(policy[12]), longest = tonumber(policy[13]),
    opens = tonumber(policy[14]), packed = policy[15] == '1', finished_ms = tonumber(policy[16]),
  }
  if thing.state == 'uncertain' then
    queue.lost = thing.now
  end
  return queue
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

--- How many a second were admitted lately, and how many admissions that is known from.
local function flow(queue)
  if queue.flow_age < 3000 then
    return 0, 0
  end
  return queue.flow_sum / (FLOW_MS / 1000 * (1 - math.exp(-queue.flow_age / FLOW_MS))), queue.flow_sum
end

local function close_queue(queue)
  close_thing(queue.thing)
  redis.call('HSET', queue.keys.meta, 'queue_at', text_of(queue.now), 'queue_time', text_of(queue.time),
    'generation', text_of(queue.generation), 'serving', text_of(queue.serving), 'lost', text_of(queue.lost))
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
