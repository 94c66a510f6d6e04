--- The pass over a service that moves deadlines after an outage (grace.lua).
--@include grace
--@include state_record

--- Make a step of the pass; gives false while there is more to do.
local function settle(thing, service, most)
  if thing.away then
    begin_grace(thing, thing.hidden)
    thing.away = false
  end
  if thing.cursor == '' then
    return true
  end
  local outage_ms = thing.outage_ms or tonumber(redis.call('HGET', thing.meta, 'outage_ms') or 0)
  local page = redis.call('HSCAN', service.states, thing.cursor, 'COUNT', most)
  for i = 1, #page[2], 2 do
    local id, until_ms = page[2][i], thing.back + read_state(page[2][i + 1]).ttl
    local deadline = tonumber(redis.call('ZSCORE', service.deadlines, id) or 0)
    if outage_ms > 0 and redis.call('ZSCORE', service.extended, id) then
      until_ms = math.min(until_ms, deadline + outage_ms)
    end
    if deadline > thing.before and deadline < until_ms then
      redis.call('ZADD', service.extended, 'NX', text_of(deadline), id)
      redis.call('ZADD', service.deadlines, text_of(until_ms), id)
    end
  end
  thing.cursor, thing.grace_changed = page[1] ~= '0' and page[1] or '', true
  return thing.cursor == ''
end
