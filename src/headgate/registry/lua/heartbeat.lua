#!lua flags=allow-oom
--- Renew instances' leases, with what each brings: nothing, metrics, metadata, a word on its health.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> words)   6 deadlines (zset id -> ms)   7 overrides (hash id -> words)
---          8 memory (zset id -> ms, overrides of who has gone)   9 checks (hash id -> json)
---          10 trials (hash id -> words)   11 due (zset id -> ms, checks)   12 changes (stream)
---          13 extended (zset id -> ms, deadlines before an outage)
--- ARGV     1 context   2 history   3.. id, registration, metrics, metadata,
---          healthy (each but the id may be empty)
--- RETURNS  for each: its registration
--- REFUSES  UNKNOWN_INSTANCE SUPERSEDED
--- AGAIN    same answer: the same is written again
--@include clock
--@include service
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, memory, checks, trials, due, changes = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local extended = KEYS[13]
local context, history = ARGV[1], ARGV[2]
local service = {
  records = records, metadata = metadata, metrics = metrics, states = states, deadlines = deadlines,
  overrides = overrides, memory = memory, checks = checks, trials = trials, due = due, changes = changes,
  extended = extended,
}

local thing = open_service(meta, context)
local replies, new_figures = {}, false
for i = 3, #ARGV, 5 do
  local id, registration, figures, labels, healthy = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local state = read_state(redis.call('HGET', states, id))
  if not state then
    replies[#replies + 1] = {err = 'UNKNOWN_INSTANCE'}
  elseif registration ~= '' and tonumber(registration) < tonumber(state.registration) then
    replies[#replies + 1] = {err = 'SUPERSEDED'}
  else
    redis.call('ZADD', deadlines, text_of(thing.now + state.ttl), id)
    if thing.now < thing.extended_until then
      redis.call('ZREM', extended, id)
    end
    if figures ~= '' then
      redis.call('HSET', metrics, id, figures)
      new_figures = true
    end
    local new_labels = labels ~= '' and redis.call('HGET', metadata, id) ~= labels
    if new_labels then
      redis.call('HSET', metadata, id, labels)
    end
    local new_state = state.lapsed == '1' or (healthy ~= '' and state.reported ~= healthy)
    if new_state then
      state.lapsed, state.reported = '0', healthy ~= '' and healthy or state.reported
      write_state(service, id, state)
    end
    if new_labels or new_state then
      told(thing, service, history, id)
    end
    replies[#replies + 1] = state.registration
  end
end
if new_figures then
  redis.call('HSET', meta, 'figures', text_of(next_number(thing)))
end
if thing.state ~= 'new' then
  close_service(thing, changes)
end
return replies
