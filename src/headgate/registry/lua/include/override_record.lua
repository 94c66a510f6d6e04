--- An operator's record in `overrides`: `enabled weight drain evicted_until`, as `registry/service_state.py` reads it, with -
--- for a field that the operator leaves to the instance.
--@include text_of
local NO_OVERRIDE = '- - - 0'

local function read_override(text)
  local enabled, weight, drain, evicted_until = string.match(text or NO_OVERRIDE, '^(%S+) (%S+) (%S+) (%d+)$')
  return {enabled = enabled, weight = weight, drain = drain, evicted_until = tonumber(evicted_until)}
end

local function pack_override(enabled, weight, drain, evicted_until)
  return table.concat({enabled, weight, drain, text_of(evicted_until)}, ' ')
end
