#!lua flags=allow-oom
--- Remove the keys of a lock that was not used for a while.
--- KEYS     group lock
--- ARGV     1 context   2 keep_ms
--- RETURNS  0 if nothing is left, else ms until it is worth looking again
--- AGAIN    same answer: a second run finds nothing more
--@include clock
--@include lease
--@include lock_keys
local context, keep_ms = ARGV[1], tonumber(ARGV[2])

local lock = open_lock(meta, context)
if lock.held then
  return keep_ms
end
-- The clock alone must carry on the fences once their last number is forgotten, and so is by how much it was put back.
local wait_ms = math.max(lock.opens + keep_ms - lock.now, math.ceil(lock.last / 1000) - lock.raw)
if wait_ms > 0 then
  return wait_ms
end
redis.call('UNLINK', meta, line, waiters, owners, events)
return 0
