--- A waiter's record in `waiters`: `owner request`, and ` ttl_ms delay_ms label` behind it if a release of its own
--- process may hand it the lock. `owner` is the process that waits, `request` names one of a holder's waits.
local function pack_waiter(owner, request, handed, ttl_ms, delay_ms, label)
  return owner .. ' ' .. request .. (handed and string.format(' %.0f %.0f %s', ttl_ms, delay_ms, label) or '')
end

--- Gives owner, request and, if the lock may be handed to it, ttl_ms, delay_ms and label.
local function read_waiter(waiters, holder)
  local owner, request, terms = string.match(redis.call('HGET', waiters, holder) or '', '^(%S+) ?(%S*) ?(.*)$')
  local ttl_ms, delay_ms, label = string.match(terms or '', '^(%d+) (%d+) (.*)$')
  return owner, request, tonumber(ttl_ms), tonumber(delay_ms), label
end
