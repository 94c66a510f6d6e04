--- Computes how many users may be called now, apart from seats: by tick, rate, pause and opening time, and by hand.
--@include queue

local VISIT_EVERY_MS, VISIT_SOONEST_MS, LATE_MS = 1000, 100, 250

--- Give the tokens that may be kept beyond the burst. While users wait for the rate and nothing else (`limited`), the
--- tokens of a late visit and the fraction of a call are kept, so that in the long run users come in at the rate. It is
--- never as much as the burst itself, and nothing is kept through a pause or while users wait for seats.
local function spare_tokens(queue, limited)
  return limited and math.min(queue.burst - 0.001, math.max(0.999, queue.rate * LATE_MS / 1000)) or 0
end

--- Gives the number allowed by the policy, the number granted by hand beyond it, and a function that takes them.
local function allowance(queue)
  local meta = queue.keys.meta
  local saved = redis.call('HMGET', meta, 'tick', 'tick_used', 'tokens', 'tokens_at', 'grants', 'hungry')
  local tick = math.floor((queue.now + tonumber(queue.epoch)) / queue.tick_ms)
  local used = tonumber(saved[1]) == tick and tonumber(saved[2] or 0) or 0
  local allowed = math.max(0, queue.batch - used)
  local tokens
  if queue.rate then
    local passed = queue.time - tonumber(saved[4] or queue.time)
    tokens = math.min(queue.burst + spare_tokens(queue, saved[6] == '1'),
      (tonumber(saved[3]) or queue.burst) + passed / 1000 * queue.rate)
    allowed = math.min(allowed, math.floor(math.min(tokens, queue.burst) + 0.000001))
  end
  local closed = calls_suspended(queue) or queue.rate == 0 or (queue.opens and queue.thing.raw < queue.opens)
  if closed then
    allowed = 0
  end
  local grants = tonumber(saved[5] or 0)

  local function take(called)
    local by_policy, waiting = math.min(called, allowed), redis.call('ZCARD', queue.keys.waiting)
    -- Grants by hand are for users who wait now: the rest is not kept for users of another day.
    grants = waiting > 0 and grants - (called - by_policy) or 0
    redis.call('HSET', meta, 'tick', text_of(tick), 'tick_used', text_of(used + by_policy), 'grants', text_of(grants))
    if not tokens then
      redis.call('HDEL', meta, 'tokens', 'tokens_at', 'hungry')
      return
    end
    queue.rate_limited = not closed and waiting > 0 and by_policy == allowed
    tokens = math.min(tokens - by_policy, queue.rate_limited and tokens or queue.burst)
    redis.call('HSET', meta, 'tokens', string.format('%.6f', tokens), 'tokens_at', text_of(queue.time),
      'hungry', queue.rate_limited and 1 or 0)
  end
  return allowed, grants, take
end

--- Give the milliseconds until the next visit: at the next tick; once a second, so that queue time keeps up with real
--- time; and while users wait for the rate, as often as a burst is full.
local function until_next_visit(queue)
  local next_tick = queue.tick_ms - (queue.now + tonumber(queue.epoch)) % queue.tick_ms
  local full = queue.rate_limited and math.max(VISIT_SOONEST_MS, math.floor(queue.burst * 1000 / queue.rate))
  return math.min(VISIT_EVERY_MS, next_tick, full or VISIT_EVERY_MS)
end
