#!lua
--- Put back tokens and revocations that the store lost; revoked tokens stay revoked.
--- KEYS     1 meta (hash)   2 tokens (hash id -> record)   3 revoked (zset "id name" -> ms)   4 events (channel)
--- ARGV     1 context   2 how many revocations follow   3.. mark ("id name"), ms, for each; then id, record, for each token
--- RETURNS  how many changes this made
--- AGAIN    same answer: what is there stays as it is
--@include clock
--@include hint
--@include token_record
local meta, tokens, revoked, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, revocations = ARGV[1], tonumber(ARGV[2])

local changes = 0
local tokens_from = 3 + revocations * 2
for i = 3, tokens_from - 1, 2 do
  local member, at = ARGV[i], ARGV[i + 1]
  changes = changes + redis.call('ZADD', revoked, 'NX', at, member)
  changes = changes + redis.call('HDEL', tokens, (unpack_revocation(member)))
end
for i = tokens_from, #ARGV, 2 do
  local id, record = ARGV[i], ARGV[i + 1]
  if not redis.call('ZSCORE', revoked, pack_revocation(id, token_name(record))) then
    changes = changes + redis.call('HSETNX', tokens, id, record)
  end
end
if changes > 0 then
  local thing = open_thing(meta, context, 0)
  redis.call('HSET', meta, 'version', text_of(next_number(thing)))
  close_thing(thing)
  hint(events, 'restored')
end
return changes
