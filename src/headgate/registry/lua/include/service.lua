--- A service as scripts see it: its clock, the lease after an outage, and the mode of its mass-expiry protection.
--@include feed
--@include grace

local function open_service(meta, context)
  local thing = open_thing(meta, context)
  open_grace(thing)
  local saved = redis.call('HMGET', meta, 'least', 'protection', 'protected_until')
  thing.least = tonumber(saved[1] or 0)
  thing.protection, thing.protected_until = saved[2] or 'auto', tonumber(saved[3] or 0)
  return thing
end

local function close_service(thing, changes)
  close_grace(thing)
  close_feed(thing, changes)
end
