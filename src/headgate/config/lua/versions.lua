#!lua flags=no-writes
--- Read a key's versions, newest first.
--- KEYS     1 versions (hash key -> last first count)   2 past (hash key@version -> json)
--- ARGV     1 key   2 before (version, 0: from the newest)   3 most
--- RETURNS  the versions found
--@include version_record
local versions, past = KEYS[1], KEYS[2]
local key, before, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local last, first = read_versions(versions, key)
if before > 0 then
  last = math.min(last, before - 1)
end
local reply = {}
-- Between two versions there may be as many numbers as are skipped after a possible loss.
for version = last, math.max(first, last - (most + 1) * (LOST_VERSIONS + 1)), -1 do
  local entry = redis.call('HGET', past, key .. '@' .. text_of(version))
  if entry then
    reply[#reply + 1] = entry
    if #reply == most then
      break
    end
  end
end
return reply
