--- The servers of a queue whose lease lasts.
--@include queue
--@include server_record
local SERVERS_AT_ONCE = 1000

--- Count the seats taken on a server; `kind` counts only those of one kind.
local function seats_of(queue, server, kind)
  local prefix = server .. ':' .. (kind or '')
  return redis.call('ZLEXCOUNT', queue.keys.seats, '[' .. prefix .. (kind and ':' or ''),
    '(' .. (kind and prefix .. ';' or server .. ';'))
end

--- Read the records of all live servers; there may be a thousand, so they are read in one call.
local function live_servers(queue)
  local ids = redis.call('ZRANGEBYSCORE', queue.keys.leases, '(' .. text_of(queue.time), '+inf')
  local found = {}
  for first = 1, #ids, SERVERS_AT_ONCE do
    local last = math.min(first + SERVERS_AT_ONCE - 1, #ids)
    for i, text in ipairs(redis.call('HMGET', queue.keys.servers, unpack(ids, first, last))) do
      found[#found + 1] = unpack_server(queue, ids[first + i - 1], text)
    end
  end
  return found
end
