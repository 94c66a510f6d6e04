#!lua flags=allow-oom
--- Put back a job that its upstream refused, and so did nothing for: it waits again, as if it was never sent.
--- KEYS     1 orders (hash)
--- ARGV     1 id   2 holder   3 attempt (that was refused)
--- RETURNS  1 if it waits again, else 0
--- AGAIN    same answer: an attempt is taken back once
local orders = KEYS[1]
local id, holder, attempt = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':holder', id .. ':attempts', id .. ':attempt')
if found[1] ~= 'sending' or found[2] ~= holder or found[4] ~= attempt then
  return 0
end
redis.call('HSET', orders, id .. ':state', 'waiting', id .. ':attempts', tonumber(found[3]) - 1)
redis.call('HDEL', orders, id .. ':attempt')
return 1
