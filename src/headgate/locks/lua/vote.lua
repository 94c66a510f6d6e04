#!lua flags=allow-oom
--- Give this node's vote for a lock to one holder, or keep it with the holder who has it.
--- KEYS     1 meta (hash)   2 events (stream)
--- ARGV     1 context   2 holder   3 ttl_ms   4 floor (the fence agreed on, 0: none yet)   5 keep_ms (after that)
---          6 label
--- RETURNS  1, fence, replication id; or 0, ms left, replication id
--- AGAIN    same answer: a holder keeps the vote and its number
--@include clock
--@include lease
--@include hint
local meta, events = KEYS[1], KEYS[2]
local context, holder, ttl_ms, floor = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local keep_ms, label = tonumber(ARGV[5]), ARGV[6]

local lock = open_lock(meta, context)
if lock.held and lock.holder ~= holder then
  return {0, text_of(math.max(1, lock.opens - lock.now)), lock.replid}
end
local fence = lock.holder == holder and tonumber(lock.fence) or next_number(lock)
fence = math.max(fence, floor)
local changed = lock.holder ~= holder or fence ~= tonumber(lock.fence)
lock.last = math.max(lock.last, fence)
close_thing(lock, 'holder', holder, 'fence', text_of(fence), 'ends', text_of(lock.now + ttl_ms), 'ttl', ttl_ms,
  'label', label)
redis.call('PEXPIRE', meta, text_of(ttl_ms + keep_ms))
if changed then
  hint(events, 'taken')
end
return {1, text_of(fence), lock.replid}
