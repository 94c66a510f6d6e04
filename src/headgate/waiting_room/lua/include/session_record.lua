--- A session's record in `sessions`: `seq+asked:server:user`. `seq` is the number of its redeem, `asked` that of the
--- last repeated redeem (left out if there was none); a session that only a server's report named has no user.
--@include text_of
local function unpack_session(id, text)
  if not text then
    return nil
  end
  local seq, asked, server, user = string.match(text, '^(%d+)%+?(%d*):([^:]*):(.*)$')
  return { id = id, seq = tonumber(seq), asked = tonumber(asked) or tonumber(seq), server = server, user = user }
end

local function read_session(sessions, id)
  return unpack_session(id, redis.call('HGET', sessions, id))
end

local function write_session(sessions, session)
  local asked = session.asked and '+' .. text_of(session.asked) or ''
  redis.call('HSET', sessions, session.id,
    text_of(session.seq) .. asked .. ':' .. session.server .. ':' .. session.user)
end
