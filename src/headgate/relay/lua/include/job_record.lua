--- A job as a member of `backlog/<user>` and `begun/<user>`: `units:id`, with its place as the score.
local function pack_job(units, id)
  return units .. ':' .. id
end

--- Gives units and id.
local function unpack_job(member)
  local units, id = string.match(member, '^(%d+):(.*)$')
  return tonumber(units), id
end
