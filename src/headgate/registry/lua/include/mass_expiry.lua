--- Tells when expiry must be held back, because too many instances are late at once.

local function mass_late(thing, deadlines, from, share)
  local total = redis.call('ZCARD', deadlines)
  if thing.protection == 'off' or total < from then
    return false
  end
  -- An instance with a third of the lease left has missed a heartbeat: deaths at one moment are noticed before the
  -- first expires.
  return redis.call('ZCOUNT', deadlines, '-inf', text_of(thing.now + thing.least / 3)) > total * share
end

local function held(thing, deadlines, from, share)
  return thing.protected_until > 0 or mass_late(thing, deadlines, from, share)
end
