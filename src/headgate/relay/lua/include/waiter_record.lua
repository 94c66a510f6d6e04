--- A waiter's id: `process.number.units`. It says in which process it waits, and how many units it wants.
local function process_of(waiter)
  return string.match(waiter, '^[^.]+')
end

local function units_of(waiter)
  return tonumber(string.match(waiter, '%.(%d+)$'))
end
