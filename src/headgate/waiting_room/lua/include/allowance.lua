--- How many may be called now, whatever the seats: by tick, by rate, by pause and opening time, and by hand.
--@include queue

--- Gives the number allowed by the policy, that granted by hand beyond it, and a function that takes what was used.
local function allowance(queue)
  local meta = queue.keys.meta
  local saved = redis.call('HMGET', meta, 'tick', 'tick_used', 'tokens', 'tokens_at', 'grants')
  local tick = math.floor((queue.now + tonumber(queue.epoch)) / queue.tick_ms)
  local used = tonumber(saved[1]) == tick and tonumber(saved[2] or 0) or 0
  local allowed = math.max(0, queue.batch - used)
  local tokens
  if queue.rate then
    local passed = queue.time - tonumber(saved[4] or queue.time)
    tokens = math.min(queue.burst, (tonumber(saved[3]) or queue.burst) + passed / 1000 * queue.rate)
    allowed = math.min(allowed, math.floor(tokens + 0.000001))
  end
  if queue.paused or queue.rate == 0 or (queue.opens and queue.thing.raw < queue.opens) then
    allowed = 0
  end
  local grants = tonumber(saved[5] or 0)

  local function take(called)
    local by_policy = math.min(called, allowed)
    -- Who is called by hand stands there: what is left over does not wait for those who come some other day.
    grants = redis.call('ZCARD', queue.keys.waiting) > 0 and grants - (called - by_policy) or 0
    redis.call('HSET', meta, 'tick', text_of(tick), 'tick_used', text_of(used + by_policy), 'grants', text_of(grants))
    if tokens then
      redis.call('HSET', meta, 'tokens', string.format('%.6f', tokens - by_policy), 'tokens_at', text_of(queue.time))
    else
      redis.call('HDEL', meta, 'tokens', 'tokens_at')
    end
  end
  return allowed, grants, take
end

--- How long until the next visit: when a tick begins, and once a second, so that queue time keeps up with real time.
local VISIT_EVERY_MS = 1000

local function until_next_visit(queue)
  return math.min(VISIT_EVERY_MS, queue.tick_ms - (queue.now + tonumber(queue.epoch)) % queue.tick_ms)
end
