--- Publishing: new versions of keys, all or none, in one linear history.
--@include clock
--@include feed
--@include version_record
--@include room

local SECRET = '"secret":true'
local FIRST_DRAFT = 10

--- Give the version that this very attempt made already, if only its answer was lost.
local function made_before(versions, past, mark, key)
  local last, first = read_versions(versions, key)
  for version = last, math.max(first, last - 4), -1 do
    local entry = redis.call('HGET', past, key .. '@' .. text_of(version))
    if entry and string.find(entry, mark, 1, true) then
      return text_of(version)
    end
  end
  return nil
end

--- Publish drafts (key, expected, kind, fields, …), which begin among the arguments at FIRST_DRAFT.
local function publish(keys, context, limits, nonce, common, drafts)
  local meta, values, versions, past, changes, deleted =
    keys.meta, keys.values, keys.versions, keys.past, keys.changes, keys.deleted
  local thing = open_thing(meta, context, 0)
  local mark, epoch = '"nonce":"' .. nonce .. '"', '"epoch":"' .. thing.epoch .. '"'

  if made_before(versions, past, mark, drafts[FIRST_DRAFT]) then
    local reply = {'published', text_of(revision_of(thing))}
    for i = FIRST_DRAFT, #drafts, 4 do
      reply[#reply + 1] = drafts[i]
      reply[#reply + 1] = made_before(versions, past, mark, drafts[i])
    end
    return reply
  end

  local new, growth, named = 0, 0, {}
  for i = FIRST_DRAFT, #drafts, 4 do
    local key, expected, kind, fields = drafts[i], drafts[i + 1], drafts[i + 2], drafts[i + 3]
    named[key] = true
    local known = redis.call('HEXISTS', versions, key) == 1
    local current = redis.call('HEXISTS', values, key) == 1 and text_of((read_versions(versions, key))) or '0'
    if expected ~= '' and expected ~= current and not (expected == '-1' and current ~= '0') then
      return {'conflict', key, current}
    end
    new = new + (known and 0 or 1)
    growth = growth + (kind == 'put' and #fields or 0) - redis.call('HSTRLEN', values, key)
  end
  -- Watchers read a namespace as a whole, so its size is limited.
  local size = tonumber(redis.call('HGET', meta, 'size') or 0)
  if growth > 0 and size + growth > limits.namespace_bytes then
    return {'full', 'bytes'}
  end
  local over = redis.call('HLEN', versions) + new - limits.most_keys
  if new > 0 and over > 0 and not make_room(meta, versions, past, deleted, over, named) then
    return {'full', 'keys'}
  end
  local floor = redis.call('HGET', meta, 'floor') or '0'
  local unborn = pack_versions(tonumber(floor), tonumber(floor) + 1, 0)

  local reply, entries = {'published', '0'}, {}
  for i = FIRST_DRAFT, #drafts, 4 do
    local key, kind, fields = drafts[i], drafts[i + 2], drafts[i + 3]
    local last, first, count = read_versions(versions, key, unborn)
    local version = last + 1
    count = count + 1
    -- After a possible loss of data, versions that were perhaps seen are not given again.
    local newest = redis.call('HGET', past, key .. '@' .. text_of(last))
    if newest and not string.find(newest, epoch, 1, true) then
      version = version + LOST_VERSIONS
    end
    -- A value that is said to be neither open nor secret stays what it was, also when it is deleted and created again.
    local unsaid = not string.find(fields, '"secret":', 1, true)
    if unsaid and newest and string.find(newest, SECRET, 1, true) then
      fields = fields .. ',' .. SECRET
    end
    local entry = '{"key":' .. cjson.encode(key) .. ',"kind":"' .. kind .. '","version":' .. text_of(version)
      .. ',"at":' .. text_of(thing.now) .. ',' .. mark .. ',' .. epoch .. common .. fields .. '}'
    -- The newest versions are kept, and older ones for a while; a few that are too old go with each publish.
    for _ = 1, 4 do
      local old = redis.call('HGET', past, key .. '@' .. text_of(first))
      local aged = old and thing.now - tonumber(string.match(old, '"at":(%d+)')) > limits.kept_ms
      if first >= version or (old and not aged and count <= limits.kept) then
        break
      end
      first, count = first + 1, count - redis.call('HDEL', past, key .. '@' .. text_of(first))
    end
    redis.call('HSET', versions, key, pack_versions(version, first, count))
    redis.call('HSET', past, key .. '@' .. text_of(version), entry)
    size = size + (kind == 'put' and #entry or 0) - redis.call('HSTRLEN', values, key)
    if kind == 'put' then
      redis.call('HSET', values, key, entry)
      redis.call('ZREM', deleted, key)
    else
      redis.call('HDEL', values, key)
      redis.call('ZADD', deleted, text_of(thing.now), key)
    end
    entries[#entries + 1] = entry
    reply[#reply + 1] = key
    reply[#reply + 1] = text_of(version)
  end
  local all_entries = '[' .. table.concat(entries, ',') .. ']'
  reply[2] = text_of(change(thing, changes, limits.history, 'publish', '', all_entries))
  -- Contents are large: the history of changes is bounded by what it weighs too.
  local weight = tonumber(redis.call('HGET', meta, 'weight') or 0) + #all_entries
  if weight > limits.history_bytes then
    redis.call('XTRIM', changes, 'MAXLEN', math.ceil(redis.call('XLEN', changes) / 2))
    weight = math.floor(weight / 2)
  end
  redis.call('HSET', meta, 'weight', text_of(weight), 'size', text_of(size))
  close_feed(thing, changes)
  return reply
end
