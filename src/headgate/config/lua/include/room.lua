--- Makes room for new keys by removing those deleted longest ago.
--@include version_record

--- Forget a deleted key; no key that is made from now on has a version that this one had.
local function forget(meta, versions, past, deleted, key)
  local last, first = read_versions(versions, key)
  for version = first, last do
    redis.call('HDEL', past, key .. '@' .. text_of(version))
  end
  redis.call('HDEL', versions, key)
  redis.call('ZREM', deleted, key)
  local floor = tonumber(redis.call('HGET', meta, 'floor') or 0)
  redis.call('HSET', meta, 'floor', text_of(math.max(floor, last)))
end

--- Forget so many of the deleted keys, but none of those that are named; false if there are not so many.
local function make_room(meta, versions, past, deleted, count, named)
  local spared = 0
  for _ in pairs(named) do
    spared = spared + 1
  end
  local found = {}
  for _, key in ipairs(redis.call('ZRANGE', deleted, 0, count + spared - 1)) do
    if not named[key] and #found < count then
      found[#found + 1] = key
    end
  end
  if #found < count then
    return false
  end
  for _, key in ipairs(found) do
    forget(meta, versions, past, deleted, key)
  end
  return true
end
