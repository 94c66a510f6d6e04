--- Ends all that is due: tickets, kept seats, stays, absences, dead servers, and records of users whose stay has ended.
--@include tickets
--@include server_record
--@include end_session
--@include forget_user

local function due(key, until_ms, most)
  return redis.call('ZRANGEBYSCORE', key, '-inf', text_of(until_ms), 'LIMIT', 0, most)
end

local CLEARED_TOGETHER = 500

--- After a reset, free seats whose owners are gone, some at a time; gives whether there may be more. They are no
--- departures, so the measurement of how long a seat is taken begins anew.
local function clear_orphans(queue)
  local keys = queue.keys
  local cleared_to = redis.call('HGET', keys.meta, 'clearing')
  if not cleared_to then
    return false
  end
  queue.turnover = ''
  local members = redis.call('ZRANGEBYLEX', keys.seats, cleared_to == '' and '-' or '(' .. cleared_to, '+',
    'LIMIT', 0, CLEARED_TOGETHER)
  local orphans, ended = {}, {}
  local owners = { h = keys.holds, k = keys.kept, s = keys.stays }
  for _, member in ipairs(members) do
    local server, kind, id = unpack_seat(member)
    local owned = redis.call('ZSCORE', owners[kind], id)
    if owned and kind == 'k' then
      local owner = read_user(keys.users, id)
      owned = owner and owner.server == server -- the user may have come back since, to another server
    end
    if (kind ~= 's' or server == '') and not owned then
      orphans[#orphans + 1] = member
      ended[#ended + 1] = kind == 's' and id or nil
    end
  end
  if #orphans > 0 then
    redis.call('ZREM', keys.seats, unpack(orphans))
  end
  if #ended > 0 then
    redis.call('HDEL', keys.sessions, unpack(ended))
  end
  if #members < CLEARED_TOGETHER then
    redis.call('HDEL', keys.meta, 'clearing')
    return false
  end
  redis.call('HSET', keys.meta, 'clearing', members[#members])
  return true
end

--- End a ticket that its owner never saw: they were called while absent, so they are away and keep their place.
local function withdraw_ticket(queue, user)
  free_hold(queue, user)
  redis.call('HDEL', queue.keys.tickets, user.ticket)
  user.state, user.ticket, user.server, user.eta = 'Y', '', '', 0
  write_user(queue.keys.users, user)
  redis.call('ZADD', queue.keys.away, text_of(queue.time + queue.keep_ms), user.id)
  count(queue, 'expired', 1)
  count(queue, 'away', 1)
end

--- End at most `budget` tickets, kept seats, stays, absences and records that are due; gives the rest of it.
local function sweep(queue, budget)
  local keys = queue.keys
  for _, ticket in ipairs(due(keys.holds, queue.time, budget)) do
    local _, id = unpack_ticket(redis.call('HGET', keys.tickets, ticket))
    local user = id and read_user(keys.users, id)
    if user and user.state == 'P' and user.ticket == ticket then
      if ticket_seen(user) then
        expire_ticket(queue, user)
        queue.changed[#queue.changed + 1] = id
      else
        withdraw_ticket(queue, user)
        queue.changed[#queue.changed + 1] = '+' .. id
      end
    else
      redis.call('ZREM', keys.holds, ticket)
    end
    budget = budget - 1
  end
  for _, id in ipairs(due(keys.kept, queue.time, budget)) do
    local user = read_user(keys.users, id)
    if user and user.state == 'K' then
      free_kept(queue, user)
      finish(queue, user, 'F')
      count(queue, 'finished', 1)
    else
      redis.call('ZREM', keys.kept, id)
    end
    budget = budget - 1
  end
  for _, id in ipairs(due(keys.stays, queue.time, budget)) do
    end_session(queue, read_session(keys.sessions, id) or { id = id, server = '', user = '' }, false)
    budget = budget - 1
  end
  for _, id in ipairs(due(keys.away, queue.time, budget)) do
    local user = read_user(keys.users, id)
    redis.call('ZREM', keys.away, id)
    if user and user.state == 'Y' then
      finish(queue, user, 'B')
      queue.changed[#queue.changed + 1] = id
      count(queue, 'abandoned', 1)
    end
    budget = budget - 1
  end
  for _, id in ipairs(due(keys.finished, queue.now, budget)) do
    forget_user(queue, id)
    budget = budget - 1
  end
  local surplus = redis.call('ZCARD', keys.finished) - queue.most_finished
  if surplus > 0 and budget > 0 then
    for _, id in ipairs(redis.call('ZRANGE', keys.finished, 0, math.min(surplus, budget) - 1)) do
      forget_user(queue, id)
      budget = budget - 1
    end
  end
  return budget
end

--- Clear servers whose lease is over: users with a ticket get a new one elsewhere, or the head of the line. So do the
--- owners of sessions that were redeemed since the server's last report, because it may not have let them in. Sessions
--- that it had reported end.
local function clear_dead(queue, budget, pick, new_ticket)
  local keys, vanished = queue.keys, queue.vanished

  local function move(user)
    local other = pick()
    if other then
      give_ticket(queue, user, other.id, new_ticket())
      vanished.taken, vanished.held = vanished.taken - 1, vanished.held - 1
    else
      user.seen = queue.seconds
      return_to_line(queue, user)
      write_user(keys.users, user)
    end
    queue.changed[#queue.changed + 1] = '+' .. user.id
    count(queue, 'moved', 1)
  end

  local clear = {}

  function clear.s(id, server)
    local session = read_session(keys.sessions, id) or { id = id, asked = 0, server = server.id, user = '' }
    if session.asked > server.confirmed then
      local user = remove_session(queue, session)
      if user then
        move(user)
      end
    else
      end_session(queue, session, false)
    end
  end

  function clear.h(ticket)
    redis.call('ZREM', keys.holds, ticket)
    local _, holder = unpack_ticket(redis.call('HGET', keys.tickets, ticket))
    local user = holder and read_user(keys.users, holder)
    if user and user.state == 'P' and user.ticket == ticket then
      move(user)
    end
  end

  function clear.k(id)
    local user = read_user(keys.users, id)
    if user and user.state == 'K' then
      redis.call('ZREM', keys.kept, id)
      finish(queue, user, 'F')
      count(queue, 'finished', 1)
    end
  end

  for _, name in ipairs(due(keys.leases, queue.time, budget)) do
    local server = read_server(queue, name) or { id = name, confirmed = 0 }
    local members = redis.call('ZRANGEBYLEX', keys.seats, '[' .. name .. ':', '(' .. name .. ';', 'LIMIT', 0, budget)
    for _, member in ipairs(members) do
      local _, kind, id = unpack_seat(member)
      redis.call('ZREM', keys.seats, member)
      vanished.taken = vanished.taken + 1
      vanished.held = vanished.held + (kind == 'h' and 1 or 0)
      clear[kind](id, server)
      budget = budget - 1
    end
    if budget > 0 then
      redis.call('ZREM', keys.leases, name)
      redis.call('HDEL', keys.servers, name)
      count(queue, 'servers_cleared', 1)
      budget = budget - 1
    else
      break
    end
  end
  return budget
end
