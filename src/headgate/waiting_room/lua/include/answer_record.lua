--- The replies of `entry` and `status`, as `waiting_room/statuses.py` decodes them.
---
--- ANSWER_FORM, for each user: state, account, place, rank. A user who was called has HELD_FORM behind it: milliseconds
--- left, ticket, server, address. COMMON_FORM, once for all users: generation, seconds since there is a line, switches
--- (1 wake the workers, 2 calls suspended), grace_ms, serving, epoch; the forecast (forecast_record.lua) follows.
--@include forecast_record
local ANSWER_FORM, COMMON_FORM, HELD_FORM = '<c1BdI4', '<ddBddd', '<dBc0Bc0Hc0'

local function pack_held(left_ms, ticket, server, address)
  return struct.pack(HELD_FORM, left_ms, #ticket, ticket, #server, server, #address, address)
end

local function pack_common(queue, suspended)
  local switches = (queue.unattended and 1 or 0) + (suspended and 2 or 0)
  return struct.pack(COMMON_FORM, queue.generation, queue.flow_age / 1000, switches, queue.grace_ms, queue.serving,
    tonumber(queue.epoch)) .. forecast(queue)
end
