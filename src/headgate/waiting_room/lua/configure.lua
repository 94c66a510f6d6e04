#!lua flags=allow-oom
--- Create a queue or change its policy, unless it was changed meanwhile; the audit keeps the change and its author.
--- KEYS     1 meta (hash)   2 policy (hash)   3 audit (stream)   4 events (stream)
--- ARGV     1 context   2 expected (the version it must have; empty: any; 0: none)   3 who   4 json
---          5 generation (at least)   6 restoring (empty: no; else what it was: its clock's offset_ms, by how many ms its
---          numbers were ahead of that, the last place called, p if paused, d if draining)
---          7 recalled (who was called and had not entered)
---          8.. field, value
--- RETURNS  the version now
--- REFUSES  VERSION_CONFLICT
--- AGAIN    never: the version it expected is gone after the first time
--@include queue
--@include note_served
local meta, policy, audit, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local context, expected, who, json = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local generation, restoring, recalled = tonumber(ARGV[5]), ARGV[6] ~= '' and ARGV[6], ARGV[7]
local AUDIT_KEPT = 1000

local queue = open_queue({ meta = meta, policy = policy, events = events }, context)
if expected ~= '' and expected ~= (queue.version or '0') then
  return { err = 'VERSION_CONFLICT' }
end
local old = redis.call('HGET', policy, 'json')
local version = tonumber(queue.version or redis.call('HGET', meta, 'version_last') or 0) + 1
if queue.deleted then
  queue.generation = queue.generation + 1
end
queue.generation = math.max(queue.generation, generation)
if restoring then
  -- Its clock continues where it was, and so do places and numbers, even if TIME was put back once.
  local thing = queue.thing
  local offset, ahead, served, switches = string.match(restoring, '^(%d+) (%d+) (%d+) (%a*)$')
  local more = math.max(0, tonumber(offset) - thing.offset)
  thing.offset, thing.now, thing.us = thing.offset + more, thing.now + more, thing.us + more * 1000
  thing.last = math.max(thing.last, thing.us + tonumber(ahead) * 1000)
  thing.epoch, queue.now = text_of(thing.last), thing.now
  queue.lost, queue.calls_from = queue.now, queue.time + RETURN_ALL_MS
  note_served(queue, tonumber(served))
  redis.call('HSET', meta, 'recalled', recalled)
  for letter, switch in pairs({ p = 'paused', d = 'draining' }) do
    if string.find(switches, letter, 1, true) then
      redis.call('HSET', meta, switch, 1)
    end
  end
end
for i = 8, #ARGV, 2 do
  redis.call('HSET', policy, ARGV[i], ARGV[i + 1])
end
redis.call('HSET', policy, 'json', json, 'version', text_of(version))
redis.call('HDEL', meta, 'deleted')
redis.call('PERSIST', meta)
redis.call('PERSIST', audit)
close_queue(queue)
emit(audit, AUDIT_KEPT, 'at', text_of(queue.now), 'who', who, 'action', restoring and 'restore' or 'configure',
  'old', old or '{}', 'new', json)
hint(events, 'policy')
return version
