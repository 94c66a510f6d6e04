#!lua flags=allow-oom
--- Take an instance out; with a time, leave a tombstone that refuses its registration until then.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> words)   6 deadlines (zset id -> ms)   7 overrides (hash id -> words)
---          8 memory (zset id -> ms, overrides of who has gone)   9 checks (hash id -> json)
---          10 trials (hash id -> words)   11 due (zset id -> ms, checks)   12 changes (stream)
---          13 extended (zset id -> ms, deadlines before an outage)
--- ARGV     1 context   2 history   3 keep_ms (overrides)   4 id   5 registration (or empty)
---          6 nonce (or empty; of a registration whose number is not known)   7 reason   8 evict_ms (0: no tombstone)
--- RETURNS  revision, 1 if it was there
--- REFUSES  SUPERSEDED
--- AGAIN    same answer: what is gone stays gone
--@include clock
--@include service
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, memory, checks, trials, due, changes = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local extended = KEYS[13]
local context, history, keep_ms, id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local registration, nonce, reason, evict_ms = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local service = {
  records = records, metadata = metadata, metrics = metrics, states = states, deadlines = deadlines,
  overrides = overrides, memory = memory, checks = checks, trials = trials, due = due, changes = changes,
  extended = extended,
}

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
  local until_ms = text_of(thing.now + evict_ms)
  redis.call('HSET', overrides, id, table.concat({override.enabled, override.weight, override.drain, until_ms}, ' '))
  redis.call('ZADD', memory, 'GT', until_ms, id)
end
if state then
  bury(thing, service, history, id, reason, keep_ms)
end
if state or evict_ms > 0 then
  close_service(thing, changes)
end
return {text_of(thing.state == 'new' and 0 or revision_of(thing)), state and 1 or 0}
