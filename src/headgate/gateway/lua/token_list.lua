#!lua flags=no-writes
--- Give all tokens and the latest revocations, if they are not those of the version that the caller knows.
--- KEYS     1 meta (hash)   2 tokens (hash id -> record)   3 revoked (zset "id name" -> ms)
--- ARGV     1 version that the caller knows
--- RETURNS  version; and if it is another one: id, record, …; "id name", ms, …
local meta, tokens, revoked = KEYS[1], KEYS[2], KEYS[3]
local known = ARGV[1]

local version = redis.call('HGET', meta, 'version') or '0'
if version == known then
  return { version }
end
return { version, redis.call('HGETALL', tokens), redis.call('ZRANGE', revoked, 0, -1, 'WITHSCORES') }
