#!lua flags=allow-oom
--- Mark a job as being sent, before its first byte leaves: from then on it does not count as unsent.
--- KEYS     1 orders (hash)
--- ARGV     1 id   2 holder   3 attempt (a number of the holder's, so that a repeat counts once)
--- RETURNS  attempts
--- REFUSES  JOB_TAKEN
--- AGAIN    same answer: one attempt counts once
local orders = KEYS[1]
local id, holder, attempt = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', orders, id .. ':state', id .. ':holder', id .. ':attempts', id .. ':attempt')
if found[2] ~= holder or (found[1] ~= 'waiting' and found[1] ~= 'sending') then
  return redis.error_reply('JOB_TAKEN Another relay has this job, or it has ended.')
end
local attempts = tonumber(found[3] or 0)
if found[4] ~= attempt then
  attempts = attempts + 1
end
redis.call('HSET', orders, id .. ':state', 'sending', id .. ':attempts', attempts, id .. ':attempt', attempt)
return attempts
