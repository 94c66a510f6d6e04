#!lua flags=allow-oom
--- Make the holder's lease last one whole TTL from now.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)   3 events (stream)
--- ARGV     1 context   2 holder   3 announce
--- RETURNS  fence, ttl_ms
--- REFUSES  NOT_HOLDER
--- AGAIN    same answer: the lease is only longer
--@include clock
--@include lease
--@include hint
local meta, line, events = KEYS[1], KEYS[2], KEYS[3]
local context, holder, announce = ARGV[1], ARGV[2], ARGV[3] == '1'

local lock = open_lock(meta, context)
if not lock.held or lock.holder ~= holder then
  return redis.error_reply('NOT_HOLDER The lease of this holder has ended, or it never held this lock.')
end
close_thing(lock, 'ends', text_of(lock.now + lock.ttl))
if announce or redis.call('ZCARD', line) > 0 then
  hint(events, 'held ' .. text_of(lock.now) .. ' ' .. text_of(lock.ttl + lock.delay))
end
return {lock.fence, text_of(lock.ttl)}
