#!lua
--- Register or renew instances with all their fields; one that changes nothing makes no revision.
--- KEYS     group service
--- ARGV     1 context   2 history   3 keep_ms (overrides)   4 most (instances)   5 from
---          6 share   7.. id, mode (register or renew), registration (or empty; the number it had), nonce,
---          ttl_ms, ephemeral, healthy, record, metadata, metrics, check (or empty), check_delay_ms
--- RETURNS  for each: revision, registration
--- REFUSES  EVICTED SUPERSEDED SERVICE_FULL UNKNOWN_INSTANCE
--- AGAIN    same answer: the nonce names the attempt
--@include service
--@include state_record
--@include mass_expiry
--@include remove_instance
--@include service_keys
local context, history, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local most, from, share = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local thing = open_service(meta, context)
local written, longest, least = false, 0, nil
local anew = redis.call('HLEN', states) == 0

--- Tell why an instance may not be written; nil if it may.
local function refusal(id, mode, registration, nonce, state, dead)
  local override = redis.call('HGET', overrides, id)
  local evicted_until = override and read_override(override).evicted_until or 0
  if evicted_until > thing.now then
    return 'EVICTED An operator has evicted this instance; it may register again in '
      .. text_of(math.ceil((evicted_until - thing.now) / 1000)) .. ' s.'
  elseif registration ~= '' and not state and mode == 'renew' then
    return 'UNKNOWN_INSTANCE'
  elseif registration ~= '' and state and not dead and state.nonce ~= nonce
    and tonumber(registration) < tonumber(state.registration) then
    return 'SUPERSEDED'
  elseif not state and redis.call('HLEN', states) >= most then
    return 'SERVICE_FULL'
  end
  return nil
end

local function register(id, mode, registration, nonce, ttl_ms, ephemeral, healthy, record, labels, figures, check,
    check_delay_ms)
  local state = read_state(redis.call('HGET', states, id))
  local dead = state and mode == 'register' and state.ephemeral == '1'
    and tonumber(redis.call('ZSCORE', deadlines, id) or 0) <= thing.now and settled(thing)
    and not held(thing, deadlines, from, share)
  local refused = refusal(id, mode, registration, nonce, state, dead)
  if refused then
    return {err = refused}
  end
  if dead then
    remove_instance(thing, service, history, id, 'expired', keep_ms)
    state = nil
  end
  local same = state and state.ttl == ttl_ms and state.ephemeral == ephemeral and state.reported == healthy
    and state.lapsed == '0' and redis.call('HGET', records, id) == record
    and redis.call('HGET', metadata, id) == labels and (redis.call('HGET', checks, id) or '') == check
  local number = state and state.registration
  if not state or (mode == 'register' and state.nonce ~= nonce) then
    number = text_of(next_number(thing))
  end
  write_state(service, id, {
    registration = number, ttl = ttl_ms, ephemeral = ephemeral, reported = healthy,
    checked = state and check ~= '' and state.checked or '1', lapsed = '0', nonce = nonce,
  })
  redis.call('ZADD', deadlines, text_of(thing.now + ttl_ms), id)
  redis.call('ZREM', extended, id)
  redis.call('HSET', metrics, id, figures)
  if not state then
    redis.call('ZREM', memory, id)
  end
  if not same then
    redis.call('HSET', records, id, record)
    redis.call('HSET', metadata, id, labels)
    if check ~= '' then
      -- A check that stays the same is due when it was.
      local known = redis.call('HGET', checks, id) == check
      redis.call('HSET', checks, id, check)
      redis.call('ZADD', due, known and 'NX' or 'CH', text_of(thing.now + check_delay_ms), id)
    elseif state then
      redis.call('HDEL', checks, id)
      redis.call('HDEL', trials, id)
      redis.call('ZREM', due, id)
    end
    publish_instance(thing, service, history, id)
    longest, least = math.max(longest, ttl_ms), math.min(least or ttl_ms, ttl_ms)
  end
  written = true
  return {text_of(revision_of(thing)), number}
end

local replies = {}
for i = 7, #ARGV, 12 do
  replies[#replies + 1] = register(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5],
    ARGV[i + 6], ARGV[i + 7], ARGV[i + 8], ARGV[i + 9], ARGV[i + 10], tonumber(ARGV[i + 11]))
end
if written then
  -- Readers who keep what they know learn from these marks that it has changed.
  local mark = text_of(next_number(thing))
  redis.call('HSET', meta, 'figures', mark, 'shape', mark)
  if least then
    longest = anew and longest or math.max(longest, thing.longest)
    least = anew and least or math.min(least, thing.least)
    redis.call('HSET', meta, 'ttl', text_of(longest), 'least', text_of(least))
  end
  close_service(thing, changes)
end
return replies
