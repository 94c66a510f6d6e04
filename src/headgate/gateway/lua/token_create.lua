#!lua
--- Keep a new token, by its hash; a name belongs to one live token at a time.
--- KEYS     1 meta (hash)   2 tokens (hash id -> name role namespace hash created_ms creator)   3 revoked (zset "id name" -> ms)
---          4 events (channel)
--- ARGV     1 context   2 most tokens   3 id   4 name   5 role   6 namespace, or * for all   7 hash   8 creator
--- RETURNS  the record as it is kept
--- REFUSES  TOKEN_EXISTS   TOKENS_FULL
--- AGAIN    same answer: the id is there already
--@include clock
--@include hint
--@include token_record
local meta, tokens, revoked, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, most, id, name = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local role, namespace, hash, creator = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local kept = redis.call('HGET', tokens, id)
if kept then
  return kept
end
local records = redis.call('HVALS', tokens)
if #records >= most then
  return redis.error_reply('TOKENS_FULL There are ' .. #records .. ' tokens already; revoke some first.')
end
for _, record in ipairs(records) do
  if token_name(record) == name then
    return redis.error_reply('TOKEN_EXISTS A token named ' .. name .. ' exists already; revoke it or take another name.')
  end
end

local thing = open_thing(meta, context, 0)
local record = pack_token(name, role, namespace, hash, thing.now, creator)
redis.call('HSET', tokens, id, record)
redis.call('ZREM', revoked, pack_revocation(id, name))
redis.call('HSET', meta, 'version', text_of(next_number(thing)))
close_thing(thing)
hint(events, 'created')
return record
