#!lua flags=allow-oom
--- Pause, resume, drain, admit by hand, reset or delete a queue, as an operator asks; this is audited.
--- KEYS     group queue   17 audit (stream)   18 history (stream)   19 traffic (hash)   20 auto (hash)
---          21 revoked (zset)
--- ARGV     1 context   2 action   3 who   4 expected (version, or empty)   5 request (its id)   6 number
---          7 tombstone_ms
--- RETURNS  the version now
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST VERSION_CONFLICT
--- AGAIN    same answer: a request that was carried out is not carried out again
--@include queue
--@include queue_keys
local audit, history, traffic, auto, revoked = KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local context, action, who, expected, request = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local number, tombstone_ms = tonumber(ARGV[6]), ARGV[7]
local AUDIT_KEPT = 1000
local REQUESTS_KEPT = 32

local queue = open_queue(keys, context)
-- Other operators may have been faster than a request that is sent again after its reply was lost.
local requests = redis.call('HGET', meta, 'request') or ''
if string.find(requests, request, 1, true) then
  return tonumber(queue.version or redis.call('HGET', meta, 'version_last'))
end
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
if expected ~= '' and expected ~= queue.version then
  return { err = 'VERSION_CONFLICT' }
end
local version = tonumber(queue.version) + 1

--- Write the operator's switches as JSON, for the audit; how many are called by hand is said where it is asked for.
local function switches(paused, draining, admit)
  return string.format('{"paused":%s,"draining":%s,"generation":%s%s}', paused and 'true' or 'false',
    draining and 'true' or 'false', text_of(queue.generation), admit and ',"admit":' .. text_of(admit) or '')
end
local old = switches(queue.paused, queue.draining)

if action == 'pause' then
  redis.call('HSET', meta, 'paused', 1, 'grants', 0)
elseif action == 'resume' then
  redis.call('HDEL', meta, 'paused', 'draining')
elseif action == 'drain' then
  redis.call('HSET', meta, 'draining', 1)
elseif action == 'admit' then
  redis.call('HINCRBY', meta, 'grants', number)
elseif action == 'reset' then
  -- Players on servers stay, and their servers go on reporting them; all others must enter again. Seats without an
  -- owner are cleared by the next steps of promotion, and count as taken until then.
  redis.call('UNLINK', waiting, users, tickets, holds, kept, away, finished, stays, traces)
  redis.call('HSET', meta, 'clearing', '', 'reset_at', text_of(queue.now))
  redis.call('HDEL', meta, 'grants', 'recalled', 'turnover', 'forecast', 'flow_age', 'flow_at', 'recent')
  queue.generation, queue.lost = queue.generation + 1, queue.now
elseif action == 'delete' then
  redis.call('UNLINK', policy, waiting, users, tickets, holds, seats, kept, away, finished, sessions, servers, leases,
    stays, traces, history, traffic, auto, revoked)
  redis.call('HSET', meta, 'deleted', 1, 'version_last', text_of(version))
  redis.call('HDEL', meta, 'paused', 'draining', 'grants', 'recalled', 'calls_from', 'tokens', 'tokens_at', 'clearing',
    'turnover', 'forecast', 'flow_age', 'flow_at', 'recent')
  redis.call('PEXPIRE', meta, tombstone_ms)
end
if action ~= 'delete' then
  redis.call('HSET', policy, 'version', text_of(version))
end
redis.call('HSET', meta, 'request', string.sub(request .. ' ' .. requests, 1, REQUESTS_KEPT * (#request + 1)))
close_queue(queue)
local going_on = action ~= 'resume' and action ~= 'delete'
emit(audit, AUDIT_KEPT, 'at', text_of(queue.now), 'who', who, 'action', action, 'old', old, 'new',
  action == 'delete' and '{"deleted":true}' or switches(action == 'pause' or going_on and queue.paused,
    action == 'drain' or going_on and queue.draining, action == 'admit' and number))
if action == 'delete' then
  redis.call('UNLINK', events)
  redis.call('PEXPIRE', audit, tombstone_ms)
end
hint(events, action)
return version
