#!lua
--- Publish new versions of keys, all or none; a deletion is a version too.
--- KEYS     1 meta (hash)   2 values (hash key -> json)   3 versions (hash key -> last first count)
---          4 past (hash key@version -> json)   5 changes (stream)   6 deleted (zset key -> ms)
--- ARGV     1 context   2 history   3 history_bytes   4 most_keys   5 kept (versions of a key)   6 kept_ms   7 nonce
---          8 namespace_bytes   9 common (json fields)   10.. key, expected (empty: any, 0: must not exist, else its version),
---          kind (put or removed), fields (json)
--- RETURNS  published, revision, then key, version of each; or conflict, key, its version; or full, of what
--- AGAIN    same answer: the nonce names the attempt
--@include clock
--@include feed
--@include room
local meta, values, versions, past, changes, deleted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local context, history, history_bytes, most_keys = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local kept, kept_ms, nonce, namespace_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local common, first_key = ARGV[9], ARGV[10]

local LOST_VERSIONS = 100
local SECRET = '"secret":true'

local thing = open_thing(meta, context, 0)
local mark, epoch = '"nonce":"' .. nonce .. '"', '"epoch":"' .. thing.epoch .. '"'

--- Give the version that this very attempt made already, if only its answer was lost.
local function made_before(key)
  local last, first = string.match(redis.call('HGET', versions, key) or '0 1 0', '^(%d+) (%d+)')
  for version = tonumber(last), math.max(tonumber(first), tonumber(last) - 4), -1 do
    local entry = redis.call('HGET', past, key .. '@' .. text_of(version))
    if entry and string.find(entry, mark, 1, true) then
      return text_of(version)
    end
  end
  return nil
end

if made_before(first_key) then
  local reply = {'published', text_of(revision_of(thing))}
  for i = 10, #ARGV, 4 do
    reply[#reply + 1] = ARGV[i]
    reply[#reply + 1] = made_before(ARGV[i])
  end
  return reply
end

local new, growth, named = 0, 0, {}
for i = 10, #ARGV, 4 do
  local key, expected, kind, fields = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  named[key] = true
  local last = string.match(redis.call('HGET', versions, key) or '', '^(%d+)')
  local current = redis.call('HEXISTS', values, key) == 1 and last or '0'
  if expected ~= '' and expected ~= current then
    return {'conflict', key, current}
  end
  new = new + (last and 0 or 1)
  growth = growth + (kind == 'put' and #fields or 0) - redis.call('HSTRLEN', values, key)
end
-- A namespace is read whole by those who watch it.
local size = tonumber(redis.call('HGET', meta, 'size') or 0)
if growth > 0 and size + growth > namespace_bytes then
  return {'full', 'bytes'}
end
local over = redis.call('HLEN', versions) + new - most_keys
if new > 0 and over > 0 and not make_room(meta, versions, past, deleted, over, named) then
  return {'full', 'keys'}
end
local floor = redis.call('HGET', meta, 'floor') or '0'
local unborn = floor .. ' ' .. text_of(tonumber(floor) + 1) .. ' 0'

local reply, told = {'published', '0'}, {}
for i = 10, #ARGV, 4 do
  local key, kind, fields = ARGV[i], ARGV[i + 2], ARGV[i + 3]
  local last, first, count = string.match(redis.call('HGET', versions, key) or unborn, '^(%d+) (%d+) (%d+)$')
  local version = tonumber(last) + 1
  first, count = tonumber(first), tonumber(count) + 1
  -- After a possible loss, versions that somebody may have seen are not given again.
  local newest = redis.call('HGET', past, key .. '@' .. last)
  if newest and not string.find(newest, epoch, 1, true) then
    version = version + LOST_VERSIONS
  end
  -- A value that nobody says is open or secret stays what it was, also when it is deleted and made again.
  local unsaid = not string.find(fields, '"secret":', 1, true)
  if unsaid and newest and string.find(newest, SECRET, 1, true) then
    fields = fields .. ',' .. SECRET
  end
  local entry = '{"key":' .. cjson.encode(key) .. ',"kind":"' .. kind .. '","version":' .. text_of(version)
    .. ',"at":' .. text_of(thing.now) .. ',' .. mark .. ',' .. epoch .. common .. fields .. '}'
  -- The newest versions are kept, and older ones for a while; a few that are too old go with each publish.
  for _ = 1, 4 do
    local old = redis.call('HGET', past, key .. '@' .. text_of(first))
    local aged = old and thing.now - tonumber(string.match(old, '"at":(%d+)')) > kept_ms
    if first >= version or (old and not aged and count <= kept) then
      break
    end
    first, count = first + 1, count - redis.call('HDEL', past, key .. '@' .. text_of(first))
  end
  redis.call('HSET', versions, key, text_of(version) .. ' ' .. text_of(first) .. ' ' .. text_of(count))
  redis.call('HSET', past, key .. '@' .. text_of(version), entry)
  size = size + (kind == 'put' and #entry or 0) - redis.call('HSTRLEN', values, key)
  if kind == 'put' then
    redis.call('HSET', values, key, entry)
    redis.call('ZREM', deleted, key)
  else
    redis.call('HDEL', values, key)
    redis.call('ZADD', deleted, text_of(thing.now), key)
  end
  told[#told + 1] = entry
  reply[#reply + 1] = key
  reply[#reply + 1] = text_of(version)
end
local publish = '[' .. table.concat(told, ',') .. ']'
reply[2] = text_of(change(thing, changes, history, 'publish', '', publish))
-- Contents are large: the history of changes is bounded by what it weighs too.
local weight = tonumber(redis.call('HGET', meta, 'weight') or 0) + #publish
if weight > history_bytes then
  redis.call('XTRIM', changes, 'MAXLEN', math.ceil(redis.call('XLEN', changes) / 2))
  weight = math.floor(weight / 2)
end
redis.call('HSET', meta, 'weight', text_of(weight), 'size', text_of(size))
close_feed(thing, changes)
return reply
