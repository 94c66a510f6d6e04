#!lua
--- Take one place at the tail of a queue for each user; a user already in line keeps the first place.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 remembered (epoch, the last place called in it, the last one called before it)
---          3 seed (of new ticket ids)   4.. user, nickname, claim (what they can show), trace
--- RETURNS  what all are told alike, packed: generation, seconds since there is a line, switches (1 wake, 2 paused),
---          grace_ms, serving, epoch, free, turnover, departures it is known from, seconds a seat is taken, the policy's pace,
---          the fastest turnover, seconds of a tick, turnover at first, seconds in which it slows down, how wrong what is
---          supposed of the late may be, seconds they hold a seat; then for each user, packed: state, account, place,
---          rank; and for who is called: left_ms, ticket, server, address
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_CLOSED QUEUE_FULL QUEUE_RESET FORBIDDEN
--- AGAIN    same answer: a user in line keeps the place
--@include arrive
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context, remembered, seed = ARGV[1], ARGV[2], ARGV[3]

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refuse_askers(refusal, 4)
end
hear_served(queue, remembered)
local new_ticket = ticket_source(queue, seed)
local ids, places, joining, replies = {}, {}, {}, { '' }
for i = 4, #ARGV, 4 do
  ids[#ids + 1] = ARGV[i]
end
local records = read_records(queue, ids)

--- Those who are new stand behind all others, so they join the line together.
local function join()
  if #places > 0 then
    redis.call('ZADD', waiting, unpack(places))
    places, joining = {}, {}
  end
end

local function newcomer(id, nickname, account)
  if queue.draining then
    return { err = 'QUEUE_CLOSED' }
  end
  queue.length = queue.length or redis.call('ZCARD', waiting)
  if queue.longest and queue.length + redis.call('ZCARD', away) >= queue.longest then
    return { err = 'QUEUE_FULL' }
  end
  queue.length = queue.length + 1
  local user = new_user(id, nickname, account, next_number(queue.thing))
  user.shown, user.seen = queue.length, queue.seconds
  user.eta = math.min(4294967295, math.floor(expected_wait(queue, queue.length) + 0.5))
  places[#places + 1] = text_of(user.place)
  places[#places + 1] = id
  joining[id] = true
  change_record(records, id, pack_user(user))
  count(queue, 'entered', 1)
  return struct.pack(ANSWER_FORM, 'W', account, user.place, user.shown)
end

local function arrive(id, nickname, claim)
  local proven, account, token = read_claim(claim)
  if joining[id] then
    join()
  end
  local told = records[id] and tell_waiting(queue, records, id, proven)
  if told then
    return told
  end
  local user, trouble = unpack_user(id, records[id]), nil
  if user and user.account == 1 and not proven then
    return { err = 'FORBIDDEN An account needs a service token, the proof of its site, or the place token.' }
  end
  if user then
    touch(queue, user, new_ticket)
    if user.state == 'K' then
      come_back(queue, user, new_ticket)
    end
  elseif not proven then
    return recently_lost(queue) and place_gone(queue)
      or { err = 'FORBIDDEN A userId needs a service token, the proof of its site, or the place token.' }
  elseif token then
    user, trouble = restore(queue, id, nickname, account, token)
  end
  if trouble then
    return trouble
  elseif user and not string.find('EFLB', user.state, 1, true) then
    told = view(queue, user)
    records[id] = redis.call('HGET', users, id)
    return told
  elseif user then
    forget(queue, id)
  end
  return newcomer(id, nickname, math.max(account, user and user.account or 0))
end

for i = 4, #ARGV, 4 do
  local id, trace = ARGV[i], ARGV[i + 3]
  local told = arrive(id, ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = told
  if trace ~= '' and not told.err then
    redis.call('HSET', traces, id, trace)
  end
end
join()
write_records(queue, records)
close_queue(queue)
replies[1] = common(queue)
return replies
