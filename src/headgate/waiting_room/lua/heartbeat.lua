#!lua flags=allow-oom
--- Renew servers' leases and store their capacity and address. A report of sessions is the truth up to its as_of:
--- sessions that it lacks have ended, and those that we do not know are inside. A session that it lacks and never had
--- was a redeem whose answer was lost: its ticket is valid again. Until it reports, an unknown server offers no seat. A
--- report that changes more than `most` sessions is applied in part, and requested again.
--- KEYS     group queue
--- ARGV     1 context   2 lease_ms   3 most (sessions that a report may change)
---          4.. server, capacity, most, address, as_of, reporting, report (ids, spaces between)
--- RETURNS  for each server: drain, report wanted, its latest seq, wake
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: the same report changes nothing more
--@include end_session
--@include server_record
--@include queue_keys
local context, lease_ms, most_changed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local DAY_US = 86400000000

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_all(refusal, 4, #ARGV, 7)
end

local changed = {}

--- Undo a redeem whose answer never reached the server: its ticket holds the seat again, for as long as a new one. A
--- ticket of an earlier epoch stays void, and its owner gets another with the next status.
local function return_ticket(session)
  local user = remove_session(queue, session)
  if not user then
    return nil
  end
  user.state, user.server, user.session = 'P', session.server, ''
  write_user(users, user)
  redis.call('ZADD', holds, text_of(queue.time + queue.ticket_ms), user.ticket)
  redis.call('ZADD', seats, 0, seat(user.server, 'h', user.ticket))
  count(queue, 'returned', 1)
  return user.id
end

--- Make the sessions of a server those of its report, except the ones redeemed after it was written. Gives whether all
--- sessions of the report are known now, and whether nothing is left to do.
local function repair(server, as_of, report, confirmed)
  local inside, missing, left = {}, {}, most_changed
  for id in string.gmatch(report, '%S+') do
    inside[id] = true
  end
  local prefix = seat(server, 's', '')
  for _, member in ipairs(redis.call('ZRANGEBYLEX', seats, '[' .. prefix, '(' .. server .. ':s;')) do
    local id = string.sub(member, #prefix + 1)
    if not inside[id] then
      missing[#missing + 1] = id
    end
    inside[id] = nil
  end
  for id in pairs(inside) do
    -- A session with this id on another server stays there.
    if redis.call('HEXISTS', sessions, id) == 0 then
      if left == 0 then
        return false, false
      end
      write_session(sessions, { id = id, seq = as_of, server = server, user = '' })
      redis.call('ZADD', seats, 0, prefix .. id)
      left = left - 1
    end
  end
  for _, id in ipairs(missing) do
    if left == 0 then
      return true, false
    end
    local session = read_session(sessions, id)
    if not session then
      redis.call('ZREM', seats, prefix .. id)
    elseif session.asked <= as_of then
      if session.asked > confirmed then
        changed[#changed + 1] = return_ticket(session)
      else
        end_session(queue, session, false)
      end
      left = left - 1
    end
  end
  return true, true
end

local replies = {}
for i = 4, #ARGV, 7 do
  local id, capacity, most, address = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local as_of, reporting, report = tonumber(ARGV[i + 4]), ARGV[i + 5] == '1', ARGV[i + 6]
  local server = read_server(queue, id) or { id = id, draining = false, seq = 0, epoch = '0', confirmed = 0 }
  server.capacity, server.most, server.address = math.min(capacity, most), most, address
  -- A store that lost everything may count from an earlier time than before: numbers continue after the one seen last.
  queue.thing.last = math.max(queue.thing.last, math.min(as_of, queue.thing.us + DAY_US))
  local done = true
  if reporting then
    server.reported, done = repair(id, as_of, report, server.confirmed)
    server.epoch = server.reported and queue.epoch or '0'
    server.confirmed = done and math.max(server.confirmed, as_of) or server.confirmed
  end
  write_server(queue, server)
  redis.call('ZADD', leases, text_of(queue.time + lease_ms), id)
  replies[#replies + 1] = {
    server.draining and 1 or 0, server.reported and done and 0 or 1, server.seq, queue.unattended and 1 or 0,
  }
end
close_queue(queue)
if #changed > 0 then
  hint(events, 'changed +' .. table.concat(changed, ' +'))
end
return replies
