#!lua flags=allow-oom
--- Spend tickets, each exactly once: the held seat becomes a session's. The same session may ask again.
--- KEYS     group queue
--- ARGV     1 context   2.. ticket, instance, session
--- RETURNS  for each ticket: user, nickname, server, seq, held_ms, trace, wake
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST TICKET_INVALID TICKET_USED TICKET_EXPIRED SESSION_TAKEN
--- AGAIN    same answer: a ticket spent by this session answers as before
--@include free_seat
--@include end_session
--@include server_record
--@include ticket_record
--@include queue_keys
local context = ARGV[1]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_all(refusal, 2, #ARGV, 3)
end

--- Note a server's latest number; gives whether it is known.
local function note_seq(id, seq)
  local server = id ~= '' and read_server(queue, id)
  if server then
    server.seq = seq
    write_server(queue, server)
  end
  return server
end

local function redeem(ticket, instance, session)
  local epoch, id = unpack_ticket(redis.call('HGET', tickets, ticket))
  local user = id and read_user(users, id)
  if not user or user.ticket ~= ticket or string.find('WYL', user.state, 1, true) then
    return { err = 'TICKET_INVALID' }
  end
  if instance ~= '' and user.server ~= '' and instance ~= user.server then
    return { err = 'TICKET_INVALID This ticket holds a seat on another server.' }
  end
  if user.state ~= 'P' and user.state ~= 'E' then
    local known = user.state == 'A' and user.session == session and read_session(sessions, session)
    if not known then
      return { err = 'TICKET_USED' }
    end
    -- A report that was written before this repeat, and lacks the session, must not end it.
    known.asked = next_number(queue.thing)
    write_session(sessions, known)
    note_seq(known.server, known.asked)
    return { id, user.nickname, known.server, known.seq, -1, '', 0 }
  end
  local deadline = tonumber(redis.call('ZSCORE', holds, ticket) or 0)
  if user.state == 'E' or deadline <= queue.time then
    return { err = 'TICKET_EXPIRED' }
  end
  if epoch ~= queue.epoch then
    return { err = 'TICKET_INVALID The store may have lost writes, so older tickets are void; ask for your status.' }
  end
  local taken = read_session(sessions, session)
  if taken and taken.server == '' and not redis.call('ZSCORE', stays, session) then
    end_session(queue, taken, false) -- from before a reset, and not cleared yet
  elseif taken then
    return { err = 'SESSION_TAKEN' }
  end
  local held = user.server
  free_hold(queue, user)
  local lease = held == '' and instance ~= '' and redis.call('ZSCORE', leases, instance)
  if lease and tonumber(lease) > queue.time then
    user.server = instance
  end
  local seq = next_number(queue.thing)
  user.state, user.session = 'A', session
  write_user(users, user)
  write_session(sessions, { id = session, seq = seq, server = user.server, user = id })
  redis.call('ZADD', seats, 0, seat(user.server, 's', session))
  if not note_seq(user.server, seq) then
    redis.call('ZADD', stays, text_of(queue.time + queue.session_ms), session)
  end
  count(queue, 'redeemed', 1)
  local trace = redis.call('HGET', traces, id)
  if trace then
    redis.call('HDEL', traces, id)
  end
  local held_ms = math.max(0, queue.ticket_ms - (deadline - queue.time)) + math.max(0, user.eta - 1)
  return { id, user.nickname, user.server, seq, held_ms, trace or '', queue.unattended and 1 or 0 }
end

--- Count the users who came in, and the sum of ms since the last step of promotion, which measures turnover from them.
local function note_arrivals(number)
  local stepped = tonumber(redis.call('HGET', meta, 'flow_at') or queue.time)
  redis.call('HINCRBY', meta, 'came', number)
  redis.call('HINCRBY', meta, 'came_ms', text_of(math.floor(number * math.max(0, queue.time - stepped))))
end

local replies, changed, came = {}, {}, 0
for i = 2, #ARGV, 3 do
  local reply = redeem(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = reply
  changed[#changed + 1] = not reply.err and reply[1] or nil
  came = came + (not reply.err and reply[5] >= 0 and 1 or 0)
end
close_queue(queue)
if came > 0 then
  note_arrivals(came)
end
if #changed > 0 then
  hint(events, 'changed ' .. table.concat(changed, ' '))
end
return replies
