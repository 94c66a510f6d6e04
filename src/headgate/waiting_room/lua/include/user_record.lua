--- A user's record in `users`, packed into some 25 bytes and the nickname, because a line may be a million long.
--- States: W waiting, P promoted, A active, K dropped (seat kept), Y away, E expired, F finished, L left, B abandoned.
---
--- Fields: state, account (1 if it needs proof), place, shown (the rank last shown), seen (queue time of the last
--- request, in seconds), eta (predicted seconds of waiting, see tickets.lua), ticket, server, session, nickname.
local USER_FORM = '<c1BdI4I4I4Bc0Bc0Bc0'
--- The first five fields, and the bytes at which `shown` begins and `seen` has ended.
local USER_HEAD = '<c1BdI4I4'
local SHOWN_AT, AFTER_SEEN = 11, 19

local function unpack_user(id, packed)
  if not packed then
    return nil
  end
  local state, account, place, shown, seen, eta, ticket, server, session, rest = struct.unpack(USER_FORM, packed)
  return {
    id = id, state = state, account = account, place = place, shown = shown, seen = seen, eta = eta,
    ticket = ticket, server = server, session = session, nickname = string.sub(packed, rest),
  }
end

local function pack_user(user)
  return struct.pack(USER_FORM, user.state, user.account, user.place, user.shown, user.seen, user.eta, #user.ticket,
    user.ticket, #user.server, user.server, #user.session, user.session) .. user.nickname
end

local function read_user(users, id)
  return unpack_user(id, redis.call('HGET', users, id))
end

local function write_user(users, user)
  redis.call('HSET', users, user.id, pack_user(user))
end
