#!lua
--- Raise the mark of a guarded resource to a fence, unless a newer holder was there already.
--- KEYS     1 value (hash)
--- ARGV     1 fence
--- RETURNS  1
--- REFUSES  FENCE_OUTDATED
--- AGAIN    same answer: the mark only grows
local kept = KEYS[1]
local fence = ARGV[1]

if tonumber(redis.call('HGET', kept, 'fence') or '0') > tonumber(fence) then
  return redis.error_reply('FENCE_OUTDATED A newer holder was here.')
end
redis.call('HSET', kept, 'fence', fence)
return 1
