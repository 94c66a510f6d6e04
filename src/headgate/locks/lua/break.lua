#!lua flags=allow-oom
--- Take a lock away from its holder, as an operator asks; the holder learns of it at its next renewal.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)   3 events (stream)
--- ARGV     1 context   2 nonce   3 fence (only this holding; empty: whichever)   4 by   5 reason
--- RETURNS  the fence of the holding that was ended, or 0
--- AGAIN    same answer: the last break is remembered
--@include clock
--@include lease
--@include line
local meta, line, events = KEYS[1], KEYS[2], KEYS[3]
local context, nonce, fence, by, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local lock = open_lock(meta, context)
local last = redis.call('HMGET', meta, 'broken', 'broken_fence')
if last[1] == nonce then
  return last[2]
end
if not lock.held or (fence ~= '' and fence ~= lock.fence) then
  return '0'
end
close_thing(lock, 'holder', '', 'free', text_of(lock.now + lock.delay), 'recalled', '', 'broken', nonce,
  'broken_fence', lock.fence)
record_loss(lock, events, 'broken', 'by', by, 'reason', reason)
publish_free(lock, line, events, true)
return lock.fence
