#!lua
--- Take one place at the tail of a queue for each user; a user already in line keeps the first place.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 serving (the last place called, as the caller remembers)
---          3 seed (of new ticket ids)   4.. user, nickname, account, proven, place, generation, trace
--- RETURNS  for each user: state, place, rank, ticket, server, address, left_ms, account, generation, rate, seen,
---          wake, grace_ms, serving
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_CLOSED QUEUE_FULL QUEUE_RESET FORBIDDEN
--- AGAIN    same answer: a user in line keeps the place
--@include arrive
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context, remembered, seed = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refuse_all(refusal, 4, #ARGV, 7)
end
queue.serving = math.max(queue.serving, remembered)
local new_ticket = ticket_source(queue, seed)

local function newcomer(id, nickname, account)
  if queue.draining then
    return nil, { err = 'QUEUE_CLOSED' }
  end
  local length = redis.call('ZCARD', waiting)
  if queue.longest and length + redis.call('ZCARD', away) >= queue.longest then
    return nil, { err = 'QUEUE_FULL' }
  end
  local user = new_user(id, nickname, account, next_number(queue.thing))
  stand_in_line(queue, user)
  local rate = flow(queue)
  user.eta = rate > 0 and math.min(4294967295, math.floor((length + 1) / rate + 0.5)) or 0
  count(queue, 'entered', 1)
  return user, nil, length
end

local function arrive(id, nickname, account, proven, place, generation)
  local user = read_user(users, id)
  if user and user.account == 1 and not proven then
    return nil, { err = 'FORBIDDEN An account needs a service token, the proof of its site, or the place token.' }
  end
  local trouble, rank
  if user then
    touch(queue, user, new_ticket)
    if user.state == 'K' then
      come_back(queue, user, new_ticket)
    end
  elseif not proven then
    return nil, { err = recently_lost(queue) and 'QUEUE_RESET'
      or 'FORBIDDEN A userId needs a service token, the proof of its site, or the place token.' }
  elseif place then
    user, trouble = restore(queue, id, nickname, account, place, generation)
    if trouble then
      return nil, trouble
    end
  end
  if not user or string.find('EFLB', user.state, 1, true) then
    if user then
      forget(queue, id)
    end
    user, trouble, rank = newcomer(id, nickname, math.max(account, user and user.account or 0))
  end
  return user, trouble, rank
end

local replies = {}
for i = 4, #ARGV, 7 do
  local id, nickname, account, proven = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3] == '1'
  local place, generation, trace = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6]
  local user, trouble, rank = arrive(id, nickname, account, proven, place, generation)
  replies[#replies + 1] = user and view(queue, user, rank) or trouble
  if user and trace ~= '' then
    redis.call('HSET', traces, id, trace)
  end
end
close_queue(queue)
return replies
