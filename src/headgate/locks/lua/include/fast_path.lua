--- The fast path of a lock: nothing happened to its history or its clock since the last call, as is the rule.
---
--- Then open_thing (clock.lua) would change nothing but the time, and a script may write the few fields it means to.
--- Functions are made anew in each call and cost more than what they do, so a script includes clock and lease only
--- behind the fast path.
--@include read_context
--@include server_time
--@include text_of

--- Read the clock, the lease and the line from meta (lined: 1 whenever there are waiters, and maybe a while longer).
local function read_lock(meta)
  return redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was',
    'holder', 'fence', 'ends', 'ttl', 'delay', 'free', 'recalled', 'label', 'released', 'lined')
end

--- Give the lock's time and the microseconds for its numbers, or nothing if open_thing must run. While it holds (a
--- lease that ended may not end), nothing changes for a lock that is free or a lease that lasts. The limits are
--- clock.lua's STEP_MS and SETTLED_MS.
local function fast_path_time(saved, context, raw, raw_us)
  local replid, expected, step, turned = read_context(context)
  if saved[1] ~= replid or math.abs(raw - expected) > 5000 or step > saved[7] + 5000
    or turned > 0 and raw - turned < 10000 then
    return nil
  end
  local passed = raw - saved[2]
  if passed >= 0 and passed <= 5000 then
    return raw + saved[3], raw_us + saved[3] * 1000
  end
end
