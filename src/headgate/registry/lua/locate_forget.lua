#!lua flags=allow-oom
--- Remove the places of instances: of the named ones, if they are in this service, and of those not noted for long.
--- KEYS     1 places (hash id -> service)   2 seen (zset id -> ms)
--- ARGV     1 keep_ms   2 most   3 service   4.. ids
--- RETURNS  how many were forgotten
--- AGAIN    same answer: a removed place stays removed
--@include server_time
--@include text_of
local places, seen = KEYS[1], KEYS[2]
local keep_ms, most, service = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local function forget(id)
  redis.call('HDEL', places, id)
  return redis.call('ZREM', seen, id)
end
local forgotten = 0
for i = 4, #ARGV do
  if redis.call('HGET', places, ARGV[i]) == service then
    forgotten = forgotten + forget(ARGV[i])
  end
end
local before = text_of(server_time() - keep_ms)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', before, 'LIMIT', 0, most)) do
  forgotten = forgotten + forget(id)
end
return forgotten
