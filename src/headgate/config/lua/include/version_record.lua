--- A key's record in `versions`: `last first count` (newest version, oldest that may be kept, number kept).
---
--- After a possible loss of data, LOST_VERSIONS numbers are skipped, because readers may have seen them.
--@include text_of
local LOST_VERSIONS = 100

--- Gives last, first and count, of `unborn` for a key that is not known.
local function read_versions(versions, key, unborn)
  local last, first, count = string.match(redis.call('HGET', versions, key) or unborn or '0 1 0', '^(%d+) (%d+) (%d+)$')
  return tonumber(last), tonumber(first), tonumber(count)
end

local function pack_versions(last, first, count)
  return text_of(last) .. ' ' .. text_of(first) .. ' ' .. text_of(count)
end
