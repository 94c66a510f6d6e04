#!lua flags=allow-oom
--- Revoke a token and keep the revocation, so that no gateway restores it from memory.
--- KEYS     1 meta (hash)   2 tokens (hash id -> record)   3 revoked (zset "id name" -> ms)   4 events (channel)
--- ARGV     1 context   2 most revocations remembered   3 name
--- RETURNS  how many tokens were revoked: 0 if they were before
--- REFUSES  TOKEN_UNKNOWN
--- AGAIN    same answer: a revoked name stays revoked
--@include clock
--@include hint
--@include token_record
local meta, tokens, revoked, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, most, name = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local thing = open_thing(meta, context, 0)
local count = 0
local all = redis.call('HGETALL', tokens)
for i = 1, #all, 2 do
  if token_name(all[i + 1]) == name then
    redis.call('HDEL', tokens, all[i])
    redis.call('ZADD', revoked, text_of(thing.now), pack_revocation(all[i], name))
    count = count + 1
  end
end
if count == 0 then
  for _, member in ipairs(redis.call('ZRANGE', revoked, 0, -1)) do
    local _, revoked_name = unpack_revocation(member)
    if revoked_name == name then
      return 0
    end
  end
  return redis.error_reply('TOKEN_UNKNOWN There is no token named ' .. name .. '.')
end
redis.call('ZREMRANGEBYRANK', revoked, 0, -1 - most)
redis.call('HSET', meta, 'version', text_of(next_number(thing)))
close_thing(thing)
hint(events, 'revoked')
return count
