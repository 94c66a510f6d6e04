--- Removes an instance from its service and publishes the removal.
--@include publish_instance

local function remove_instance(thing, service, history, id, reason, keep_ms)
  local last = instance_json(service, id)
  for _, part in ipairs({'records', 'metadata', 'metrics', 'states', 'checks', 'trials'}) do
    redis.call('HDEL', service[part], id)
  end
  redis.call('ZREM', service.deadlines, id)
  redis.call('ZREM', service.extended, id)
  redis.call('ZREM', service.due, id)
  local words = redis.call('HGET', service.overrides, id)
  if words then
    -- A tombstone alone is kept until its time is over, an operator's decision for longer.
    local override = read_override(words)
    local decided = override.enabled ~= '-' or override.weight ~= '-' or override.drain ~= '-'
    local keep_until = math.max(override.evicted_until, decided and thing.now + keep_ms or 0)
    redis.call('ZADD', service.memory, text_of(keep_until), id)
  end
  return change(thing, service.changes, history, 'removed', id, '{"reason":"' .. reason .. '","last":' .. last .. '}')
end
