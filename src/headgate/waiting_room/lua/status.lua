#!lua
--- Say how each user stands, note that they asked, and bring back whoever was away or lost.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 serving (the last place called, as the caller remembers)
---          3 seed (of new ticket ids)   4.. user, nickname, account, proven, place, generation
--- RETURNS  for each user: state, place, rank, ticket, server, address, left_ms, account, generation, rate, seen,
---          wake, grace_ms, serving
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_RESET NOT_IN_LINE FORBIDDEN
--- AGAIN    same answer: the same moment is noted again
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
  return refuse_all(refusal, 4, #ARGV, 6)
end
queue.serving = math.max(queue.serving, remembered)
local new_ticket = ticket_source(queue, seed)

local function ask(id, nickname, account, proven, place, generation)
  local user = read_user(users, id)
  if user then
    if user.account == 1 and not proven then
      return { err = 'FORBIDDEN An account needs a service token or the place token.' }
    end
    touch(queue, user, new_ticket)
    return view(queue, user)
  end
  if place then
    local restored, trouble = restore(queue, id, nickname, account, place, generation)
    if restored or trouble then
      return trouble or view(queue, restored)
    end
  end
  return { err = recently_lost(queue) and 'QUEUE_RESET' or 'NOT_IN_LINE' }
end

local replies = {}
for i = 4, #ARGV, 6 do
  local id, nickname, account, proven = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3] == '1'
  local place, generation = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  replies[#replies + 1] = ask(id, nickname, account, proven, place, generation)
end
close_queue(queue)
return replies
