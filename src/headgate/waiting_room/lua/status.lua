#!lua flags=allow-oom
--- Say how each user stands, note that they asked, and bring back whoever was away or lost.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 remembered (epoch, the last place called in it, the last one called before it)
---          3 seed (of new ticket ids)   4.. user, claim (what they can show)
--- RETURNS  what all are told alike, packed: generation, seconds since there is a line, switches (1 wake, 2 paused),
---          grace_ms, serving, epoch, free, turnover, departures it is known from, seconds a seat is taken, the policy's pace,
---          the fastest turnover, seconds of a tick, turnover at first, seconds in which it slows down, how wrong what is
---          supposed of the late may be, seconds they hold a seat; then for each user, packed: state, account, place,
---          rank; and for who is called: left_ms, ticket, server, address
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_RESET NOT_IN_LINE FORBIDDEN
--- AGAIN    same answer: the same moment is noted again
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
  return refuse_askers(refusal, 2)
end
local serving, generation = queue.serving, queue.generation
hear_served(queue, remembered)
local new_ticket = ticket_source(queue, seed)
local ids, replies = {}, { '' }
for i = 4, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local records = read_records(queue, ids)

local function ask(id, claim)
  local proven, account, token, enters = read_claim(claim)
  local told = records[id] and tell_waiting(queue, records, id, proven)
  if told then
    return told
  end
  local user = unpack_user(id, records[id])
  if user then
    if user.account == 1 and not proven then
      return { err = 'FORBIDDEN An account needs a service token or the place token.' }
    end
    touch(queue, user, new_ticket)
    if enters and user.state == 'K' then
      come_back(queue, user, new_ticket)
    end
    told = view(queue, user)
  elseif token then
    local restored, trouble = restore(queue, id, token.nickname, account, token)
    told = trouble or restored and view(queue, restored)
  end
  records[id] = redis.call('HGET', users, id)
  return told or recently_lost(queue) and place_gone(queue) or { err = 'NOT_IN_LINE' }
end

for i = 4, #ARGV, 2 do
  replies[#replies + 1] = ask(ARGV[i], ARGV[i + 1])
end
write_records(queue, records)
close_asked(queue, serving, generation)
replies[1] = common(queue)
return replies
