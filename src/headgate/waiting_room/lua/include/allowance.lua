--- How many may be called now, whatever the seats: by tick, by rate, by pause and opening time, and by hand.
--@include queue

local VISIT_EVERY_MS, VISIT_SOONEST_MS, LATE_MS = 1000, 100, 250

--- While people wait for the rate and for nothing else, what a late visit brings and the part of a call that cannot be
--- made yet are kept beside the burst: in the long run they come in at the rate. Never as much as the burst itself, and
--- nothing of it is kept through a pause or while seats are what they wait for.
local function spare(queue, hungry)
  return hungry and math.min(queue.burst - 0.001, math.max(0.999, queue.rate * LATE_MS / 1000)) or 0
end

--- Gives the number allowed by the policy, that granted by hand beyond it, and a function that takes what was used.
local function allowance(queue)
  local meta = queue.keys.meta
  local saved = redis.call('HMGET', meta, 'tick', 'tick_used', 'tokens', 'tokens_at', 'grants', 'hungry')
  local tick = math.floor((queue.now + tonumber(queue.epoch)) / queue.tick_ms)
  local used = tonumber(saved[1]) == tick and tonumber(saved[2] or 0) or 0
  local allowed = math.max(0, queue.batch - used)
  local tokens
  if queue.rate then
    local passed = queue.time - tonumber(saved[4] or queue.time)
    tokens = math.min(queue.burst + spare(queue, saved[6] == '1'),
      (tonumber(saved[3]) or queue.burst) + passed / 1000 * queue.rate)
    allowed = math.min(allowed, math.floor(math.min(tokens, queue.burst) + 0.000001))
  end
  local closed = standing(queue) or queue.rate == 0 or (queue.opens and queue.thing.raw < queue.opens)
  if closed then
    allowed = 0
  end
  local grants = tonumber(saved[5] or 0)

  local function take(called)
    local by_policy, waiting = math.min(called, allowed), redis.call('ZCARD', queue.keys.waiting)
    -- Who is called by hand stands there: what is left over does not wait for those who come some other day.
    grants = waiting > 0 and grants - (called - by_policy) or 0
    redis.call('HSET', meta, 'tick', text_of(tick), 'tick_used', text_of(used + by_policy), 'grants', text_of(grants))
    if not tokens then
      redis.call('HDEL', meta, 'tokens', 'tokens_at', 'hungry')
      return
    end
    queue.hungry = not closed and waiting > 0 and by_policy == allowed
    tokens = math.min(tokens - by_policy, queue.hungry and tokens or queue.burst)
    redis.call('HSET', meta, 'tokens', string.format('%.6f', tokens), 'tokens_at', text_of(queue.time),
      'hungry', queue.hungry and 1 or 0)
  end
  return allowed, grants, take
end

--- How long until the next visit: when a tick begins; once a second, so that queue time keeps up with real time; and while
--- people wait for the rate, as often as a burst is full.
local function until_next_visit(queue)
  local next_tick = queue.tick_ms - (queue.now + tonumber(queue.epoch)) % queue.tick_ms
  local full = queue.hungry and math.max(VISIT_SOONEST_MS, math.floor(queue.burst * 1000 / queue.rate))
  return math.min(VISIT_EVERY_MS, next_tick, full or VISIT_EVERY_MS)
end
