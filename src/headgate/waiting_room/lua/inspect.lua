#!lua flags=no-writes
--- Find contradictions in one part of a queue, some members at a time, without changing anything. The members of one
--- step are compared with the rest of the queue as it is at that moment.
--- KEYS     group queue
--- ARGV     1 part (one of these names, or sums)   2 cursor (0 at first)   3 count
--- RETURNS  cursor (0: the end), members looked at, then what was found, …
--@include user_record
--@include ticket_record
--@include seat_record
--@include session_record
--@include queue_keys
local part, cursor, count = ARGV[1], ARGV[2], ARGV[3]
local HOMES = { W = waiting, Y = away, K = kept, E = finished, F = finished, L = finished, B = finished }
local NAMES = { W = 'waiting', Y = 'away', K = 'kept', E = 'finished', F = 'finished', L = 'finished', B = 'finished' }

local found = {}
local function check(holds_true, words)
  if not holds_true then
    found[#found + 1] = words
  end
end

local function has(set, member)
  return redis.call('ZSCORE', set, member)
end

--- Give the user of a ticket, or ''.
local function ticket_owner(text)
  local _, user = unpack_ticket(text)
  return user or ''
end

--- After a reset, promotion clears seats without an owner; until then they are no contradiction.
local clearing = redis.call('HEXISTS', meta, 'clearing') == 1
local looks = {}

function looks.users(id, packed)
  local user = unpack_user(id, packed)
  local home = HOMES[user.state]
  if home then
    local score = has(home, id)
    check(score, 'user ' .. id .. ' (state ' .. user.state .. ') is missing in ' .. NAMES[user.state])
    check(user.state ~= 'W' or not score or tonumber(score) == user.place, 'user ' .. id .. ' has two places')
  end
  if user.state == 'P' then
    check(ticket_owner(redis.call('HGET', tickets, user.ticket)) == id, 'user ' .. id .. ' was called without a ticket')
    check(has(holds, user.ticket) and has(seats, seat(user.server, 'h', user.ticket)),
      'user ' .. id .. ' has a ticket that holds no seat')
  elseif user.state == 'K' then
    check(has(seats, seat(user.server, 'k', id)), 'user ' .. id .. ' was dropped and no seat is kept')
  elseif user.state == 'A' then
    local session = read_session(sessions, user.session)
    check(session and session.user == id, 'user ' .. id .. ' is inside without a session')
  end
end

local function of_state(states, name)
  return function(id)
    local user = read_user(users, id)
    check(user and string.find(states, user.state, 1, true), 'user ' .. id .. ' in ' .. name .. ' has no such record')
  end
end
looks.waiting, looks.away, looks.kept = of_state('W', 'waiting'), of_state('Y', 'away'), of_state('K', 'kept')
looks.finished = of_state('EFLB', 'finished')

function looks.holds(ticket)
  local user = read_user(users, ticket_owner(redis.call('HGET', tickets, ticket)))
  check(user and user.state == 'P' and user.ticket == ticket, 'a held seat belongs to nobody who was called')
end

function looks.tickets(ticket, text)
  local user = read_user(users, ticket_owner(text))
  check(user and user.ticket == ticket, 'a ticket belongs to nobody')
end

function looks.seats(member)
  local _, kind, id = unpack_seat(member)
  check(clearing or (kind == 'h' and has(holds, id)) or (kind == 'k' and has(kept, id))
    or (kind == 's' and redis.call('HEXISTS', sessions, id) == 1), 'seat ' .. member .. ' is taken by nobody')
end

function looks.sessions(id, text)
  check(clearing or has(seats, seat(unpack_session(id, text).server or '', 's', id)), 'session ' .. id .. ' has no seat')
end

if part == 'sums' then
  local taken = redis.call('HLEN', sessions) + redis.call('ZCARD', holds) + redis.call('ZCARD', kept)
  local all = redis.call('ZCARD', seats)
  check(clearing or taken == all, 'sessions, holds and kept seats are ' .. taken .. ', seats taken are ' .. all)
  return { '0', 0, unpack(found) }
end
local hashes = { users = users, tickets = tickets, sessions = sessions }
local sets = { waiting = waiting, away = away, kept = kept, finished = finished, holds = holds, seats = seats }
local reply
if hashes[part] then
  reply = redis.call('HSCAN', hashes[part], cursor, 'COUNT', count)
else
  reply = redis.call('ZSCAN', sets[part], cursor, 'COUNT', count)
end
for i = 1, #reply[2], 2 do
  looks[part](reply[2][i], reply[2][i + 1])
end
return { reply[1], #reply[2] / 2, unpack(found, 1, math.min(#found, 100)) }
