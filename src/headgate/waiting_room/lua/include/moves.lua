--- How people and seats move. `seats` holds server:kind:id, all of one score, so that a server's are counted and
--- found by their prefix; kinds are h (held by a ticket), s (a session) and k (kept for somebody who was dropped).
--@include queue
--@include user
--- Hints name whose state changed: `changed a +b`. The sign says that b was called and has not entered, and keeps the place.
--- Those of promotion begin with the epoch and the last place called: `changed =7:42 a +b`.

--- A function that makes new ticket ids out of a random seed that nobody else knows, and a number that never repeats: a
--- call that is sent again after a lost reply has the same seed, and must not make the same tickets for other people.
local function ticket_source(queue, seed)
  return function()
    local hex = redis.sha1hex(seed .. ':' .. text_of(next_number(queue.thing)))
    return string.sub(hex, 1, 8) .. '-' .. string.sub(hex, 9, 12) .. '-4' .. string.sub(hex, 14, 16) .. '-a'
      .. string.sub(hex, 18, 20) .. '-' .. string.sub(hex, 21, 32)
  end
end

local function seat(server, kind, id)
  return server .. ':' .. kind .. ':' .. id
end

local function seats_of(queue, server, kind)
  local prefix = server .. ':' .. (kind or '')
  return redis.call('ZLEXCOUNT', queue.keys.seats, '[' .. prefix .. (kind and ':' or ''),
    '(' .. (kind and prefix .. ';' or server .. ';'))
end

--- What a server last said of itself; reported is true if it said so in this epoch, so its sessions are known. All its
--- sessions up to `confirmed` were in a report of its own.
local function unpack_server(queue, id, text)
  if not text then
    return nil
  end
  local capacity, most, draining, seq, epoch, confirmed, address =
    string.match(text, '^(%d+) (%d+) (%d) (%d+) (%d+)/?(%d*) (.*)$')
  return {
    id = id, capacity = tonumber(capacity), most = tonumber(most), draining = draining == '1', seq = tonumber(seq),
    reported = epoch == queue.epoch, epoch = epoch, confirmed = tonumber(confirmed) or 0, address = address,
  }
end

local function read_server(queue, id)
  return unpack_server(queue, id, redis.call('HGET', queue.keys.servers, id))
end

local function write_server(queue, server)
  redis.call('HSET', queue.keys.servers, server.id, text_of(server.capacity) .. ' ' .. text_of(server.most) .. ' '
    .. (server.draining and 1 or 0) .. ' ' .. text_of(server.seq) .. ' ' .. server.epoch .. '/'
    .. text_of(server.confirmed) .. ' ' .. server.address)
end

local function live(queue, id)
  local lease = redis.call('ZSCORE', queue.keys.leases, id)
  return lease and tonumber(lease) > queue.time
end

--- A session, the number of its redeem, and the number of the last time that its redeem was asked for (`asked`).
local function read_session(queue, id)
  local text = redis.call('HGET', queue.keys.sessions, id)
  if not text then
    return nil
  end
  local seq, asked, server, user = string.match(text, '^(%d+)%+?(%d*):([^:]*):(.*)$')
  return { id = id, seq = tonumber(seq), asked = tonumber(asked) or tonumber(seq), server = server, user = user }
end

local function write_session(queue, session)
  local asked = session.asked and '+' .. text_of(session.asked) or ''
  redis.call('HSET', queue.keys.sessions, session.id,
    text_of(session.seq) .. asked .. ':' .. session.server .. ':' .. session.user)
end

--- Put somebody where they wait, at the place they have; the caller writes the record.
local function stand_in_line(queue, user)
  if user.ticket ~= '' then
    redis.call('HDEL', queue.keys.tickets, user.ticket)
    user.eta = 0
  end
  user.state, user.ticket, user.server, user.session = 'W', '', '', ''
  redis.call('ZADD', queue.keys.waiting, text_of(user.place), user.id)
  queue.length = queue.length and queue.length + 1
end

--- Somebody is done, one way or another; what became of them can be asked for a while.
local function finish(queue, user, state)
  user.state = state
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.finished, text_of(queue.now + queue.finished_ms), user.id)
  redis.call('HDEL', queue.keys.traces, user.id)
end

local function free_hold(queue, user)
  redis.call('ZREM', queue.keys.holds, user.ticket)
  redis.call('ZREM', queue.keys.seats, seat(user.server, 'h', user.ticket))
end

local function free_kept(queue, user)
  redis.call('ZREM', queue.keys.kept, user.id)
  redis.call('ZREM', queue.keys.seats, seat(user.server, 'k', user.id))
end

--- Calls of one kind that are made together: a step for two hundred people is then ten commands and not two thousand.
--- The commands are written out where `together` is called, and `doctor --acl` reads them there.
local MOST_TOGETHER = 1000
local perform = redis.call

local function together(queue, command, key, one, other)
  local waiting = queue.together
  if not waiting then
    if other then
      perform(command, key, one, other)
    else
      perform(command, key, one)
    end
    return
  end
  local call = waiting[command .. key]
  if not call then
    call = { command, key }
    waiting[command .. key] = call
  end
  call[#call + 1] = one
  call[#call + 1] = other
end

local function make_calls(queue)
  for _, call in pairs(queue.together) do
    for first = 3, #call, MOST_TOGETHER do
      perform(call[1], call[2], unpack(call, first, math.min(first + MOST_TOGETHER - 1, #call)))
    end
  end
  queue.together = false
end

--- Give a ticket that holds a seat on a server; whatever the person held before must be free already.
local function give_ticket(queue, user, server, ticket)
  if user.ticket ~= '' then
    redis.call('HDEL', queue.keys.tickets, user.ticket)
  end
  user.state, user.ticket, user.server, user.session, user.eta = 'P', ticket, server, '', 0
  together(queue, 'HSET', queue.keys.users, user.id, pack_user(user))
  together(queue, 'HSET', queue.keys.tickets, ticket, queue.epoch .. ':' .. user.id)
  together(queue, 'ZADD', queue.keys.holds, text_of(queue.time + queue.ticket_ms), ticket)
  together(queue, 'ZADD', queue.keys.seats, 0, seat(server, 'h', ticket))
  count(queue, 'issued', 1)
end

--- Somebody who is called is not predicted anything any more: their `eta` is 0 until they have seen the ticket, then 1
--- and the milliseconds that this took. Until then the rank they were last shown is kept, since they may be back in line.
local function ticket_seen(user)
  return user.eta > 0
end

--- Somebody sees their ticket for the first time: its time counts from now on.
local function show_ticket(queue, user)
  local since = tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or queue.time) - queue.ticket_ms
  user.shown, user.eta = 0, 1 + math.max(0, math.min(queue.time - since, 86400000))
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.holds, text_of(queue.time + queue.ticket_ms), user.ticket)
end

--- For how long a seat was held until now, by a ticket that lapses at the deadline.
local function held_ms(queue, user, deadline)
  return math.max(0, queue.ticket_ms - (deadline - queue.time)) + math.max(0, user.eta - 1)
end

--- A ticket was not used in time: its seat is free, and status says EXPIRED.
local function expire_ticket(queue, user)
  free_hold(queue, user)
  finish(queue, user, 'E')
  count(queue, 'expired', 1)
end

--- A ticket ran out that its owner never saw: they were called while absent, so they are away and keep their place.
local function withdraw_ticket(queue, user)
  free_hold(queue, user)
  redis.call('HDEL', queue.keys.tickets, user.ticket)
  user.state, user.ticket, user.server, user.eta = 'Y', '', '', 0
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.away, text_of(queue.time + queue.keep_ms), user.id)
  count(queue, 'expired', 1)
  count(queue, 'away', 1)
end

--- Remove a session and its seat; gives the user who is inside by it, or nil.
local function remove_session(queue, session)
  redis.call('HDEL', queue.keys.sessions, session.id)
  redis.call('ZREM', queue.keys.seats, seat(session.server, 's', session.id))
  redis.call('ZREM', queue.keys.stays, session.id)
  local user = session.user ~= '' and read_user(queue.keys.users, session.user) or nil
  return user and user.state == 'A' and user.session == session.id and user or nil
end

--- End a session; `dropped` keeps its seat for the owner to come back to.
local function end_session(queue, session, dropped)
  local user = remove_session(queue, session)
  if not user then
    return
  end
  if dropped and queue.reentry_ms > 0 then
    user.state, user.server = 'K', session.server
    write_user(queue.keys.users, user)
    redis.call('ZADD', queue.keys.kept, text_of(queue.time + queue.reentry_ms), user.id)
    redis.call('ZADD', queue.keys.seats, 0, seat(user.server, 'k', user.id))
  else
    finish(queue, user, 'F')
    count(queue, 'finished', 1)
  end
end

--- Undo a redeem whose answer never reached the server: its ticket holds the seat again, for as long as a new one. A ticket
--- of an earlier epoch stays void, and its owner gets another with the next status.
local function return_ticket(queue, session)
  local user = remove_session(queue, session)
  if not user then
    return nil
  end
  user.state, user.server, user.session = 'P', session.server, ''
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.holds, text_of(queue.time + queue.ticket_ms), user.ticket)
  redis.call('ZADD', queue.keys.seats, 0, seat(user.server, 'h', user.ticket))
  count(queue, 'returned', 1)
  return user.id
end

--- Forget somebody for good.
local function forget(queue, id)
  local user = read_user(queue.keys.users, id)
  redis.call('ZREM', queue.keys.finished, id)
  if user and string.find('EFLB', user.state, 1, true) then
    if user.ticket ~= '' then
      redis.call('HDEL', queue.keys.tickets, user.ticket)
    end
    redis.call('HDEL', queue.keys.users, id)
  end
end
