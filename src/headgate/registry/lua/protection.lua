#!lua flags=allow-oom
--- Let an operator switch a service's mass-expiry protection off, or back to automatic.
--- KEYS     1 meta (hash)   2 changes (stream)
--- ARGV     1 context   2 mode (auto or off)
--- RETURNS  1, or 0 if there is no such service
--- AGAIN    same answer: the same is written again
--@include service
local meta, changes = KEYS[1], KEYS[2]
local context, mode = ARGV[1], ARGV[2]

local thing = open_service(meta, context)
if thing.state == 'new' then
  return 0
end
redis.call('HSET', meta, 'protection', mode)
if mode == 'off' then
  redis.call('HSET', meta, 'protected_until', '0')
end
close_service(thing, changes)
return 1
