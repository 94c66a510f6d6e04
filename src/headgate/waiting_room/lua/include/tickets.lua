--- Issues tickets, each of which holds a seat, and puts users back in line.
---
--- Hints name the users whose state changed: `changed a +b`. The sign says that b was called, has not entered, and
--- keeps the place. Hints of promotion begin with the epoch and the last place called: `changed =7:42 a +b`.
--@include finish
--@include free_seat
--@include ticket_record

--- Make a function that gives new ticket ids, from a random seed that only the caller knows and a number that never
--- repeats: a call that is sent again after a lost reply has the same seed, and must not issue the same tickets.
local function ticket_source(queue, seed)
  return function()
    local hex = redis.sha1hex(seed .. ':' .. text_of(next_number(queue.thing)))
    return string.sub(hex, 1, 8) .. '-' .. string.sub(hex, 9, 12) .. '-4' .. string.sub(hex, 14, 16) .. '-a'
      .. string.sub(hex, 18, 20) .. '-' .. string.sub(hex, 21, 32)
  end
end

--- Put a user back in line at the place that they have; the caller writes the record.
local function return_to_line(queue, user)
  if user.ticket ~= '' then
    redis.call('HDEL', queue.keys.tickets, user.ticket)
    user.eta = 0
  end
  user.state, user.ticket, user.server, user.session = 'W', '', '', ''
  redis.call('ZADD', queue.keys.waiting, text_of(user.place), user.id)
  queue.length = queue.length and queue.length + 1
end

--- Call a command, or collect it for `call_collected` if `queue.collected` is a table: a step for two hundred users is
--- then ten commands instead of two thousand. Commands are literals, because `doctor --acl` reads them.
local perform = redis.call

local function together(queue, command, key, one, other)
  local collected = queue.collected
  if not collected then
    if other then
      perform(command, key, one, other)
    else
      perform(command, key, one)
    end
    return
  end
  local call = collected[command .. key]
  if not call then
    call = { command, key }
    collected[command .. key] = call
  end
  call[#call + 1] = one
  call[#call + 1] = other
end

--- Issue a ticket that holds a seat on a server; the seat that the user held before must be free already.
local function give_ticket(queue, user, server, ticket)
  if user.ticket ~= '' then
    redis.call('HDEL', queue.keys.tickets, user.ticket)
  end
  user.state, user.ticket, user.server, user.session, user.eta = 'P', ticket, server, '', 0
  together(queue, 'HSET', queue.keys.users, user.id, pack_user(user))
  together(queue, 'HSET', queue.keys.tickets, ticket, pack_ticket(queue.epoch, user.id))
  together(queue, 'ZADD', queue.keys.holds, text_of(queue.time + queue.ticket_ms), ticket)
  together(queue, 'ZADD', queue.keys.seats, 0, seat(server, 'h', ticket))
  count(queue, 'issued', 1)
end

--- Tell whether a user who was called has seen the ticket. Their `eta` is no prediction any more: it is 0 until they
--- have seen it, then 1 and the milliseconds that this took.
local function ticket_seen(user)
  return user.eta > 0
end

--- Start the time of a ticket when its user is shown it first, and give its deadline.
local function show_ticket(queue, user)
  local deadline = redis.call('ZSCORE', queue.keys.holds, user.ticket)
  if not ticket_seen(user) then
    local since = tonumber(deadline or queue.time) - queue.ticket_ms
    user.shown, user.eta = 0, 1 + math.max(0, math.min(queue.time - since, 86400000))
    write_user(queue.keys.users, user)
    deadline = queue.time + queue.ticket_ms
    redis.call('ZADD', queue.keys.holds, text_of(deadline), user.ticket)
  end
  return tonumber(deadline or 0)
end

--- End a ticket that was not used in time: its seat is free, and status says EXPIRED.
local function expire_ticket(queue, user)
  free_hold(queue, user)
  finish(queue, user, 'E')
  count(queue, 'expired', 1)
end
