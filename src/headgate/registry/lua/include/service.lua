--- One service: how an instance's state is written, what others are told of it, how it is taken out, and when expiry
--- must be held back.
---
--- A state is `registration ttl ephemeral reported checked lapsed nonce`, an override `enabled weight drain
--- evicted_until` with - for what the operator leaves to the instance. The last heartbeat is the deadline less the ttl.
--@include feed
--@include grace
local NO_OVERRIDE = '- - - 0'

local function open_service(meta, context)
  local thing = open_thing(meta, context)
  open_grace(thing)
  local saved = redis.call('HMGET', meta, 'least', 'protection', 'protected_until')
  thing.least = tonumber(saved[1] or 0)
  thing.protection, thing.protected_until = saved[2] or 'auto', tonumber(saved[3] or 0)
  return thing
end

local function close_service(thing, changes)
  close_grace(thing)
  close_feed(thing, changes)
end

local function mass_late(thing, deadlines, from, share)
  local total = redis.call('ZCARD', deadlines)
  if thing.protection == 'off' or total < from then
    return false
  end
  -- Who has a third of the lease left has missed a heartbeat: deaths at one moment are seen before the first is due.
  return redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now + thing.least / 3)) > total * share
end

local function held(thing, deadlines, from, share)
  return thing.protected_until > 0 or mass_late(thing, deadlines, from, share)
end

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

local function read_override(text)
  local enabled, weight, drain, evicted_until = string.match(text or NO_OVERRIDE, '^(%S+) (%S+) (%S+) (%d+)$')
  return {enabled = enabled, weight = weight, drain = drain, evicted_until = tonumber(evicted_until)}
end

local function view(service, id)
  return table.concat({
    '{"record":', redis.call('HGET', service.records, id), ',"metadata":', redis.call('HGET', service.metadata, id),
    ',"metrics":', redis.call('HGET', service.metrics, id) or '{}',
    ',"state":"', redis.call('HGET', service.states, id),
    '","override":"', redis.call('HGET', service.overrides, id) or NO_OVERRIDE,
    '","check":', redis.call('HGET', service.checks, id) or 'null',
    ',"deadline":', redis.call('ZSCORE', service.extended, id) or redis.call('ZSCORE', service.deadlines, id) or '0', '}',
  })
end

local function told(thing, service, history, id)
  return change(thing, service.changes, history, 'put', id, view(service, id))
end

local function bury(thing, service, history, id, reason, keep_ms)
  local last = view(service, id)
  for _, part in ipairs({'records', 'metadata', 'metrics', 'states', 'checks', 'trials'}) do
    redis.call('HDEL', service[part], id)
  end
  redis.call('ZREM', service.deadlines, id)
  redis.call('ZREM', service.extended, id)
  redis.call('ZREM', service.due, id)
  local words = redis.call('HGET', service.overrides, id)
  if words then
    -- A tombstone alone is forgotten when its time is over, an operator's decision later.
    local override = read_override(words)
    local decided = override.enabled ~= '-' or override.weight ~= '-' or override.drain ~= '-'
    local keep_until = math.max(override.evicted_until, decided and thing.now + keep_ms or 0)
    redis.call('ZADD', service.memory, text_of(keep_until), id)
  end
  return change(thing, service.changes, history, 'removed', id, '{"reason":"' .. reason .. '","last":' .. last .. '}')
end
