--- Which server the next ticket holds a seat on.
--@include moves

--- What all live servers last said of themselves. There may be a thousand, so they are not asked for one by one.
local function live_servers(queue)
  local ids = redis.call('ZRANGEBYSCORE', queue.keys.leases, '(' .. text_of(queue.time), '+inf')
  local found = {}
  for first = 1, #ids, MOST_TOGETHER do
    local last = math.min(first + MOST_TOGETHER - 1, #ids)
    for i, text in ipairs(redis.call('HMGET', queue.keys.servers, unpack(ids, first, last))) do
      found[#found + 1] = unpack_server(queue, ids[first + i - 1], text)
    end
  end
  return found
end

--- All live servers that may take somebody, with the seats that are free; `room` counts up to what they can take at
--- most.
local function open_servers(queue, room)
  local found = {}
  for _, server in ipairs(live_servers(queue)) do
    if server.reported and not server.draining then
      server.free = (room and server.most or server.capacity) - seats_of(queue, server.id)
      if server.free > 0 then
        found[#found + 1] = server
      end
    end
  end
  return found
end

local function free_seats(servers)
  local free = 0
  for _, server in ipairs(servers) do
    free = free + math.max(0, server.free)
  end
  return free
end

--- A function that gives the next server with a free seat, or nil: the most free first level by level, or the fullest
--- first.
local function picker(servers, packed)
  table.sort(servers, function(one, other)
    if one.free ~= other.free then
      return (one.free > other.free) ~= packed
    end
    return one.id < other.id
  end)
  local at, level = 1, servers[1] and servers[1].free or 0
  return function()
    if packed then
      while servers[at] and servers[at].free <= 0 do
        at = at + 1
      end
    elseif not servers[at] or servers[at].free < level then
      at, level = 1, level - 1
    end
    local server = servers[at]
    if not server or (not packed and level <= 0) then
      return nil
    end
    server.free = server.free - 1
    if not packed then
      at = at + 1
    end
    return server
  end
end

--- Like picker, for a queue whose seats are one number: no server is named.
local function fixed_picker(free)
  return function()
    if free <= 0 then
      return nil
    end
    free = free - 1
    return { id = '' }
  end
end
