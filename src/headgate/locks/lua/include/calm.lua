--- The short way of a lock: nothing happened to its history or its clock since the last call, as is the rule.
---
--- Then the clock's care (clock.lua) would change nothing, and a script may write the few fields it means to. Functions are
--- made anew in each call and cost more than what they do, so the others are included behind the short way out.
--@include server_time
--@include text_of

--- Read what meta says of the clock, the lease and the line (lined: 1 whenever anybody stands there, and maybe a while longer).
local function read_lock(meta)
  return redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was',
    'holder', 'fence', 'ends', 'ttl', 'delay', 'free', 'recalled', 'label', 'released', 'lined')
end

--- Give the lock's time and the microseconds for its numbers, or nothing if the clock must look closer. While it holds (a
--- lease that ended may not end), nothing changes for a lock that is free or a lease that lasts.
local function calm_time(saved, context, raw, raw_us)
  local replid, expected, step = string.match(context, '^(%S+) (%d+) (%d+)$')
  if saved[1] ~= replid or math.abs(raw - expected) > 5000 or tonumber(step) > tonumber(saved[7]) then
    return nil
  end
  local passed = raw - saved[2]
  if passed >= 0 and passed <= 5000 then
    return raw + saved[3], raw_us + saved[3] * 1000
  end
end
