--- The seats that promotion may give: of servers, or of a queue whose seats are one number (`fixed`).

--- Add up the free seats of servers.
local function free_seats(servers)
  local free = 0
  for _, server in ipairs(servers) do
    free = free + math.max(0, server.free)
  end
  return free
end

--- Make a function like that of `picker` (placement.lua) for a queue whose seats are one number: it names no server.
local function fixed_picker(free)
  return function()
    if free <= 0 then
      return nil
    end
    free = free - 1
    return { id = '' }
  end
end
