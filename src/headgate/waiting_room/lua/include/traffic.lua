--- Counts requests for a resource over a sliding window of ten parts, packed as `part:count,count,…` in one hash field.
local PARTS = 10

--- Give the counts as of now, oldest parts emptied, and the part that now is in.
local function read_traffic(traffic, resource, now, window_ms)
  local part = math.floor(now * PARTS / window_ms)
  local counts, seen = {}, part
  local last, list = string.match(redis.call('HGET', traffic, resource) or '', '^(%d+):(.*)$')
  if last then
    seen = tonumber(last)
    for number in string.gmatch(list, '%d+') do
      counts[#counts + 1] = tonumber(number)
    end
  end
  for i = 1, PARTS do
    counts[i] = counts[i] or 0
  end
  for skipped = math.max(seen + 1, part - PARTS + 1), part do
    counts[skipped % PARTS + 1] = 0
  end
  return counts, part
end

local function write_traffic(traffic, resource, counts, part)
  for i = 1, PARTS do
    counts[i] = string.format('%.0f', counts[i])
  end
  redis.call('HSET', traffic, resource, string.format('%.0f', part) .. ':' .. table.concat(counts, ','))
end

local function total(counts)
  local sum = 0
  for i = 1, PARTS do
    sum = sum + counts[i]
  end
  return sum
end
