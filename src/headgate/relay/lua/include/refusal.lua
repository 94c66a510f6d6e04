--- Pauses a pool after a refusal by the upstream, and lets one probe go first afterwards.
--@include pool
local LEAST_PAUSE_MS = 500
local LONGEST_BACKOFF_MS = 60000
local MOST_JITTER_MS = 5000

--- Pause a pool after a refusal: as long as the upstream asks for, and at least twice as long as after the one before.
--- Then one request, whatever it costs, goes first as a probe. Refusals of requests that were sent before the probe
--- was count as one. `jitter` (0 to 1) keeps users who were refused together from coming back together.
local function pause_pool(pool, waiter, pause_ms, jitter)
  if not pool.probe or pool.probe == waiter then
    pool.refusals = pool.refusals + 1
  end
  local ms = math.max(pause_ms, math.min(LONGEST_BACKOFF_MS, LEAST_PAUSE_MS * 2 ^ (pool.refusals - 1)))
  ms = math.floor(ms + jitter * math.min(ms / 4, MOST_JITTER_MS))
  pool.pause, pool.probe = math.max(pool.pause, pool.now + ms), '1'
  redis.call('HSET', pool.state, 'pause', text_of(pool.pause), 'probe', '1', 'refusals', pool.refusals)
end

--- End the probe if it was this request that was answered: all may go again.
local function end_probe(pool, waiter)
  if pool.probe == waiter then
    pool.probe, pool.refusals = false, 0
    redis.call('HDEL', pool.state, 'probe', 'refusals')
  end
end
