#!lua flags=allow-oom
--- Take an instance out; with a time, leave a tombstone that refuses its registration until then.
--- KEYS     group service
--- ARGV     1 context   2 history   3 keep_ms (overrides)   4 id   5 registration (or empty)
---          6 nonce (or empty; of a registration whose number is not known)   7 reason   8 evict_ms (0: no tombstone)
--- RETURNS  revision, 1 if it was there
--- REFUSES  SUPERSEDED
--- AGAIN    same answer: a second run finds nothing more
--@include service
--@include state_record
--@include remove_instance
--@include service_keys
local context, history, keep_ms, id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local registration, nonce, reason, evict_ms = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local thing = open_service(meta, context)
local state = read_state(redis.call('HGET', states, id))
if state and state.nonce ~= nonce then
  if registration ~= '' and tonumber(registration) < tonumber(state.registration) then
    return redis.error_reply('SUPERSEDED')
  elseif registration == '' and nonce ~= '' then
    state = nil  -- another's, which stays
  end
end
if evict_ms > 0 then
  local override = read_override(redis.call('HGET', overrides, id))
  local until_ms = thing.now + evict_ms
  redis.call('HSET', overrides, id, pack_override(override.enabled, override.weight, override.drain, until_ms))
  redis.call('ZADD', memory, 'GT', text_of(until_ms), id)
end
if state then
  remove_instance(thing, service, history, id, reason, keep_ms)
end
if state or evict_ms > 0 then
  close_service(thing, changes)
end
return {text_of(thing.state == 'new' and 0 or revision_of(thing)), state and 1 or 0}
