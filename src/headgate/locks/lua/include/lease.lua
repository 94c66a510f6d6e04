--- What a lock's meta says on its steady clock: who holds it, until when, and from when on the next may have it.
---
--- A lease that has ended is hidden at once, wherever it is read; the holder's name stays in meta until somebody else
--- takes the lock. While the clock is in doubt (holding) no lease ends.
--@include clock
local function open_lock(meta, context)
  local saved = redis.call('HMGET', meta, 'holder', 'fence', 'ends', 'ttl', 'delay', 'free', 'recalled')
  local lock = open_thing(meta, context, tonumber(saved[4] or 0))
  lock.holder = saved[1] ~= '' and saved[1]
  lock.fence = saved[2] or '0'
  lock.ends = tonumber(saved[3] or 0)
  lock.ttl = tonumber(saved[4] or 0)
  lock.delay = tonumber(saved[5] or 0)
  lock.recalled = saved[7] == '1'
  lock.held = lock.holder and (lock.now < lock.ends or lock.holding) or false
  if not lock.holder then
    lock.opens = tonumber(saved[6] or 0)
  elseif lock.holding then
    lock.opens = math.max(lock.ends, lock.hold) + lock.delay
  else
    lock.opens = lock.ends + lock.delay
  end
  return lock
end
