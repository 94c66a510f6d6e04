--- How many of a protected service may expire: a tenth of those that were late when it began, each second.
local DRAIN_SHARE = 0.1
local LONGEST_CREDIT_MS = 2000

--- Give how many may go now, at most `most`, and how many more without waiting.
local function drain_allowance(thing, overdue, most)
  local saved = redis.call('HMGET', thing.meta, 'draining', 'drained')
  local draining, drained = tonumber(saved[1] or 0), tonumber(saved[2] or 0)
  if draining == 0 then
    draining, drained = overdue, thing.now - 1000
  end
  local each_ms = 1000 / math.max(1, draining * DRAIN_SHARE)
  local due = math.floor(math.min(thing.now - drained, LONGEST_CREDIT_MS) / each_ms)
  local allowed = math.min(due, most)
  if allowed > 0 then
    drained = thing.now - (due - allowed) * each_ms
  end
  redis.call('HSET', thing.meta, 'draining', text_of(draining), 'drained', text_of(drained))
  return allowed, due - allowed
end
