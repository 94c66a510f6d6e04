--- A ticket's record in `tickets`: `epoch:user`. The epoch is the one in which the ticket was issued.
local function pack_ticket(epoch, user)
  return epoch .. ':' .. user
end

--- Gives epoch and user, or nil for a ticket that is not known.
local function unpack_ticket(text)
  return string.match(text or '', '^(%d+):(.*)$')
end
