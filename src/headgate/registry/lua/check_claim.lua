#!lua flags=allow-oom
--- Claim the health checks that are due in a service; no other process makes them until the claim lapses.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 states (hash id -> words)   4 checks (hash id -> json)
---          5 due (zset id -> ms)
--- ARGV     1 context   2 most   3 spare_ms (beyond a check's own time limit)
--- RETURNS  next_ms (-1: no checks), then id, registration, record, check of each
--- AGAIN    same answer: a claim whose reply was lost lapses by itself
--@include service
--@include state_record
--@include keep_time
local meta, records, states, checks, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context, most, spare_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local thing = open_service(meta, context)
local reply = {-1}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text_of(thing.now), 'LIMIT', 0, most)) do
  local check = redis.call('HGET', checks, id)
  redis.call('ZADD', due, text_of(thing.now + cjson.decode(check).timeoutSeconds * 1000 + spare_ms), id)
  local state = read_state(redis.call('HGET', states, id))
  reply[#reply + 1] = id
  reply[#reply + 1] = state.registration
  reply[#reply + 1] = redis.call('HGET', records, id)
  reply[#reply + 1] = check
end
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if first[2] then
  reply[1] = math.max(0, math.floor(tonumber(first[2]) - thing.now))
end
if thing.held_anew then
  close_grace(thing)
  close_thing(thing)
else
  keep_time(thing)
end
return reply
