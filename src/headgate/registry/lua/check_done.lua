#!lua flags=allow-oom
--- Record results of health checks; enough equal ones in a row make an instance healthy or unhealthy, and publish it.
--- KEYS     group service   14 lost (zset id -> ms, instances that died lately)
--- ARGV     1 context   2 history   3 keep_ms (overrides)   4.. id, registration, passed, rise, fall,
---          remove_after_ms (0: never), next_ms
--- RETURNS  for each: same, healthy, unhealthy, removed or skipped
--- AGAIN    never: a trial would count twice
--@include service
--@include state_record
--@include remove_instance
--@include lost
--@include service_keys
local lost = KEYS[14]
local context, history, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local thing = open_service(meta, context)
local replies = {}
for i = 4, #ARGV, 7 do
  local id, registration, passed = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local rise, fall = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local remove_after_ms, next_ms = tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
  local state = read_state(redis.call('HGET', states, id))
  local word = 'same'
  if not state or state.registration ~= registration or redis.call('HEXISTS', checks, id) == 0 then
    word = 'skipped'
  else
    local good, bad, since = string.match(redis.call('HGET', trials, id) or '0 0 0', '^(%d+) (%d+) (%d+)$')
    good, bad, since = tonumber(good), tonumber(bad), tonumber(since)
    if passed == '1' then
      good, bad = math.min(good + 1, rise), 0
      if state.checked == '0' and good >= rise then
        word, state.checked, since = 'healthy', '1', 0
      end
    else
      good, bad = 0, math.min(bad + 1, fall)
      if state.checked == '1' and bad >= fall then
        word, state.checked, since = 'unhealthy', '0', thing.now
      end
    end
    redis.call('HSET', trials, id, text_of(good) .. ' ' .. text_of(bad) .. ' ' .. text_of(since))
    redis.call('ZADD', due, text_of(thing.now + next_ms), id)
    if word ~= 'same' then
      write_state(service, id, state)
      publish_instance(thing, service, history, id)
    elseif remove_after_ms > 0 and since > 0 and state.ephemeral == '1' and thing.now - since >= remove_after_ms then
      word = 'removed'
      remove_instance(thing, service, history, id, 'unhealthy', keep_ms)
      note_lost(thing, lost, id)
    end
  end
  replies[#replies + 1] = word
end
if thing.state ~= 'new' then
  close_service(thing, changes)
end
return replies
