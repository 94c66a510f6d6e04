--- Read the context of a call (its first argument), which the store's client fills in; no other code may parse it.
---
--- Gives the primary's replication id; the server time that the caller expects (ms, 0: it knows none); when the caller
--- saw the server's clock step forward (ms, 0: never); when it saw that clock put back (ms, 0: never); and, if there
--- was an outage lately, from when until when the server gave the caller no answers or took no writes (ms, else nil).
local function read_context(context)
  local replid, expected, step, turned, outage = string.match(context, '^(%S+) (%d+) (%d+) (%d+)([%d ]*)$')
  if not replid then
    error('a context has replication id, expected time, step forward, step back, and perhaps an outage: from, until')
  end
  if outage ~= '' then
    local from, till = string.match(outage, '^ (%d+) (%d+)$')
    return replid, tonumber(expected), tonumber(step), tonumber(turned), tonumber(from), tonumber(till)
  end
  return replid, tonumber(expected), tonumber(step), tonumber(turned)
end
