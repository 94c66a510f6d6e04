--- The lease of a lock on its steady clock: the holder, until when, and from when on the next may take it.
---
--- A lease that has ended is hidden at once, wherever it is read; the holder's name stays in meta until another
--- takes the lock. While the clock is in doubt (holding), no lease ends.
---
--- A new lock's fences begin a minute ahead of the clock, where those of a lock that may have lost writes go on. A lock
--- that then loses its whole record begins above them again, since it gave less than one a microsecond meanwhile. Where
--- the last fence is ahead of the clock already, only a few fences were lost, and MOST_LOST above it is enough.
--@include fast_path
--@include clock
local AHEAD_US = 60000000
local MOST_LOST = 1000000

local function open_lock(meta, context, saved)
  saved = saved or read_lock(meta)
  local ttl = tonumber(saved[12] or 0)
  local lock = open_thing(meta, context, ttl, saved)
  if lock.state ~= 'same' then
    lock.last = math.max(tonumber(saved[4] or 0) + MOST_LOST, lock.us + AHEAD_US)
  end
  lock.holder = saved[9] ~= '' and saved[9]
  lock.fence = saved[10] or '0'
  lock.ends = tonumber(saved[11] or 0)
  lock.ttl = ttl
  lock.delay = tonumber(saved[13] or 0)
  lock.recalled = saved[15] == '1'
  lock.label = saved[16] or ''
  lock.held = lock.holder and (lock.now < lock.ends or lock.holding) or false
  if not lock.holder then
    lock.opens = tonumber(saved[14] or 0)
  elseif lock.holding then
    lock.opens = math.max(lock.ends, lock.hold) + lock.delay
  else
    lock.opens = lock.ends + lock.delay
  end
  return lock
end

--- Make a waiter the holder for one TTL, and give the new fence; unchanged fields are not written again.
local function give_lock(lock, holder, ttl_ms, delay_ms, label, ...)
  local fence = text_of(next_number(lock))
  close_thing(lock, 'holder', holder, 'fence', fence, 'ends', text_of(lock.now + ttl_ms), 'since', text_of(lock.now), ...)
  if ttl_ms ~= lock.ttl or delay_ms ~= lock.delay or label ~= lock.label or lock.recalled then
    redis.call('HSET', lock.meta, 'ttl', ttl_ms, 'delay', delay_ms, 'label', label, 'recalled', '')
  end
  return fence
end
