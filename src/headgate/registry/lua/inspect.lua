#!lua flags=no-writes
--- Compare what the parts of a service know of its instances: they must agree. Nothing is changed.
--- KEYS     1 records (hash id -> json)   2 metadata (hash id -> json)   3 states (hash id -> words)
---          4 deadlines (zset id -> ms)
--- ARGV     1 most (instances that are looked at one by one)
--- RETURNS  members looked at, then what was found, …
--@include state_record
local records, metadata, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])
local known = redis.call('HLEN', records)
local found = {}
for name, number in pairs({ metadata = redis.call('HLEN', metadata), states = redis.call('HLEN', states) }) do
  if number ~= known then
    found[#found + 1] = 'there are ' .. known .. ' records and ' .. number .. ' ' .. name
  end
end
local leased = redis.call('ZCARD', deadlines)
if leased > known then
  found[#found + 1] = 'there are ' .. known .. ' records and ' .. leased .. ' deadlines'
elseif leased < known and known <= most then
  -- Only those that stay without heartbeats may have none.
  local all = redis.call('HGETALL', states)
  for i = 1, #all, 2 do
    if read_state(all[i + 1]).ephemeral == '1' and not redis.call('ZSCORE', deadlines, all[i]) then
      found[#found + 1] = 'instance ' .. all[i] .. ' would never expire'
      break
    end
  end
end
return { known, unpack(found) }
