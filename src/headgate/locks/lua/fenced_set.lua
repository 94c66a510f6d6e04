#!lua
--- Write a value unless a newer holder has written already.
--- KEYS     1 value (hash)
--- ARGV     1 fence   2 value
--- RETURNS  1
--- REFUSES  FENCE_OUTDATED
--- AGAIN    same answer: the same holder writes the same value
local kept = KEYS[1]
local fence, value = ARGV[1], ARGV[2]

if tonumber(redis.call('HGET', kept, 'fence') or '0') > tonumber(fence) then
  return redis.error_reply('FENCE_OUTDATED A newer holder has written here.')
end
redis.call('HSET', kept, 'fence', fence, 'value', value)
return 1
