--- Chooses the server on which the next ticket holds a seat.
--@include live_servers

--- List the live servers that have a free seat; `room` counts up to the most that they can take, beyond their capacity.
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

--- Make a function that gives the next server with a free seat, or nil: the emptiest first, level by level, or, if
--- `packed`, the fullest first.
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
