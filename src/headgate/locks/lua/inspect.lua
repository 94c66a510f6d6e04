#!lua flags=no-writes
--- Compare the line of a lock with the records of its waiters, without changing anything: both must agree.
--- KEYS     1 line (zset holder -> place)   2 waiters (hash holder -> owner)   3 owners (hash owner -> waiters)
--- ARGV     1 most (processes whose waiters are added up)
--- RETURNS  members looked at, then what was found, …
local line, waiters, owners = KEYS[1], KEYS[2], KEYS[3]
local most = tonumber(ARGV[1])
local waiting, found = redis.call('ZCARD', line), {}
local known = redis.call('HLEN', waiters)
if known ~= waiting then
  found[#found + 1] = waiting .. ' wait in line and ' .. known .. ' are known'
end
if redis.call('HLEN', owners) <= most then
  local sum = 0
  for _, number in ipairs(redis.call('HVALS', owners)) do
    sum = sum + tonumber(number)
  end
  if sum ~= waiting then
    found[#found + 1] = waiting .. ' wait in line and their processes have ' .. sum
  end
end
return { waiting, unpack(found) }
