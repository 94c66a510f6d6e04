--- A member of `seats`: `server:kind:id`. All have one score, so that a server's seats are counted and found by their
--- prefix. Kinds: h (held, id is the ticket), s (id is the session), k (kept for a dropped user, id is the user).
local function seat(server, kind, id)
  return server .. ':' .. kind .. ':' .. id
end

--- Gives server, kind and id.
local function unpack_seat(member)
  return string.match(member, '^([^:]*):(%l):(.*)$')
end
