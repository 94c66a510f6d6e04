--- An instance's record in `states`: `registration ttl ephemeral reported checked lapsed nonce`, as `registry/service_state.py`
--- reads it. The last heartbeat is the deadline less the ttl.
--@include text_of
local function read_state(text)
  if not text then
    return nil
  end
  local registration, ttl, ephemeral, reported, checked, lapsed, nonce =
    string.match(text, '^(%d+) (%d+) (%d) (%d) (%d) (%d) (%S+)$')
  return {
    registration = registration, ttl = tonumber(ttl), ephemeral = ephemeral, reported = reported, checked = checked,
    lapsed = lapsed, nonce = nonce,
  }
end

local function write_state(service, id, state)
  redis.call('HSET', service.states, id, table.concat({state.registration, text_of(state.ttl), state.ephemeral,
    state.reported, state.checked, state.lapsed, state.nonce}, ' '))
end
