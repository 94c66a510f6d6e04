#!lua flags=allow-oom
--- Renew servers' leases and take what they say of themselves. A report of sessions is the truth up to its as_of:
--- what it lacks has ended, what it has beyond what we know is inside. A session that it lacks and never had was a redeem
--- whose answer was lost: its ticket is good again. Until it reports, a server we do not know offers no seat. A report that
--- changes more than `most` sessions is taken in part, and wanted again.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
--- ARGV     1 context   2 lease_ms   3 most (sessions that a report may change)
---          4.. server, capacity, most, address, as_of, reporting, report (ids, spaces between)
--- RETURNS  for each server: drain, report wanted, its latest seq, wake
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: the same report changes nothing more
--@include moves
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local context, lease_ms, most_changed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local DAY_US = 86400000000

local queue = open_queue({
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}, context)
local refusal = unknown(queue)
if refusal then
  return refuse_all(refusal, 4, #ARGV, 7)
end

local changed = {}

--- Make the sessions of a server those of its report, except the ones redeemed after it was written. Gives whether all
--- who are inside are known now, and whether nothing is left to do.
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
    -- Another server's session of this id stays that server's.
    if redis.call('HEXISTS', sessions, id) == 0 then
      if left == 0 then
        return false, false
      end
      write_session(queue, { id = id, seq = as_of, server = server, user = '' })
      redis.call('ZADD', seats, 0, prefix .. id)
      left = left - 1
    end
  end
  for _, id in ipairs(missing) do
    if left == 0 then
      return true, false
    end
    local session = read_session(queue, id)
    if not session then
      redis.call('ZREM', seats, prefix .. id)
    elseif session.asked <= as_of then
      if session.asked > confirmed then
        changed[#changed + 1] = return_ticket(queue, session)
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
  -- A store that lost everything may count from an earlier hour than before; what comes now is later than what was seen.
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
