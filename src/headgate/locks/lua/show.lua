#!lua flags=no-writes
--- Tell whether a lock is held, since when and for how long, and how many wait.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)
--- ARGV     1 context
--- RETURNS  1 if held, fence, waiting, ms left, ttl_ms, label, ms since it was taken, now
--@include clock
--@include lease
local meta, line = KEYS[1], KEYS[2]
local context = ARGV[1]

local lock = open_lock(meta, context)
local more = redis.call('HMGET', meta, 'label', 'since')
local left, since = 0, 0
if lock.held then
  left = math.max(lock.opens - lock.delay - lock.now, 1)
  since = lock.now - tonumber(more[2] or lock.now)
end
return {
  lock.held and 1 or 0, lock.fence, redis.call('ZCARD', line), text_of(left), text_of(lock.ttl),
  lock.held and more[1] or '', text_of(since), text_of(lock.now),
}
