#!lua flags=allow-oom
--- Renew instances' leases, and store the metrics, metadata and health that each brings, if any.
--- KEYS     group service
--- ARGV     1 context   2 history   3.. id, registration, metrics, metadata,
---          healthy (each but the id may be empty)
--- RETURNS  for each: its registration
--- REFUSES  UNKNOWN_INSTANCE SUPERSEDED
--- AGAIN    same answer: the same is written again
--@include service
--@include state_record
--@include publish_instance
--@include service_keys
local context, history = ARGV[1], ARGV[2]

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
      publish_instance(thing, service, history, id)
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
