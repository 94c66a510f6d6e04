--- Publishes instances to the service's history, as `registry/service_state.py` reads them.
--@include feed
--@include override_record

local function instance_json(service, id)
  return table.concat({
    '{"record":', redis.call('HGET', service.records, id), ',"metadata":', redis.call('HGET', service.metadata, id),
    ',"metrics":', redis.call('HGET', service.metrics, id) or '{}',
    ',"state":"', redis.call('HGET', service.states, id),
    '","override":"', redis.call('HGET', service.overrides, id) or NO_OVERRIDE,
    '","check":', redis.call('HGET', service.checks, id) or 'null',
    ',"deadline":', redis.call('ZSCORE', service.extended, id) or redis.call('ZSCORE', service.deadlines, id) or '0', '}',
  })
end

local function publish_instance(thing, service, history, id)
  return change(thing, service.changes, history, 'put', id, instance_json(service, id))
end
