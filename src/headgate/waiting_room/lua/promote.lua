#!lua flags=allow-oom
--- Make one step of a queue: end what is due, count free seats, call the front of the line, and hold a seat for each.
--- KEYS     group queue   17 history (stream)
--- ARGV     1 context   2 most (people touched by this call)   3 most_finished   4 seed (of new ticket ids)
--- RETURNS  more to do now, due in ms (-1: not until something happens), then for each one called: user, waited ms,
---          seconds predicted at entry, trace
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: what a tick, the rate and the seats allow is kept in the store, so a second run calls no one
---          over
--- LONG     one step must be atomic: it ends, counts, calls and measures
--@include sweep
--@include placement
--@include fixed_seats
--@include allowance
--@include turnover
--@include minutes
--@include queue_keys
local history = KEYS[17]
local context, most, most_finished, seed = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local VISIT_LATE_MS = 3000
local MOST_TOGETHER = 1000

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
queue.changed, queue.most_finished, queue.vanished = {}, most_finished, { taken = 0, held = 0 }
queue.rate_limited = false
local new_ticket = ticket_source(queue, seed)

local function call_collected()
  for _, call in pairs(queue.collected) do
    for first = 3, #call, MOST_TOGETHER do
      perform(call[1], call[2], unpack(call, first, math.min(first + MOST_TOGETHER - 1, #call)))
    end
  end
  queue.collected = false
end

local length = redis.call('ZCARD', waiting)
local clearing = clear_orphans(queue)
local budget = sweep(queue, most)
local servers_open = queue.fixed and {} or open_servers(queue, false)
-- Where seats are one number, a user who loses a server keeps the seat: it is the queue's, and no more are taken.
local pick = queue.fixed and fixed_picker(math.huge) or picker(servers_open, queue.packed)
budget = clear_dead(queue, budget, pick, new_ticket)
-- Seats freed or taken above count: that pick only served users whose server died.
local before = { taken = redis.call('ZCARD', seats), held = redis.call('ZCARD', holds) }
local free = math.min(queue.capacity and queue.capacity - before.taken or math.huge,
  queue.fixed and math.huge or free_seats(servers_open))
if queue.fixed then
  pick = fixed_picker(free)
end

local allowed, grants, take = allowance(queue)
-- Without a seat no user is called, so none is found to be away.
local wanted = math.min(allowed + grants, free)
local called, replies = 0, {}
local traced = redis.call('HLEN', traces) > 0
while called < wanted and budget > 0 do
  local front = redis.call('ZRANGE', waiting, 0, math.min(wanted - called, budget) - 1)
  if #front == 0 then
    break
  end
  local records = redis.call('HMGET', users, unpack(front))
  -- All of them leave the line in one call, because finding each of them in a long line is expensive.
  redis.call('ZREMRANGEBYRANK', waiting, 0, #front - 1)
  queue.collected = {}
  for i, id in ipairs(front) do
    local user = unpack_user(id, records[i])
    budget = budget - 1
    local waits = user and user.state == 'W'
    if waits and (queue.seconds - user.seen) * 1000 > queue.grace_ms then
      together(queue, 'ZADD', away, text_of(queue.time + queue.keep_ms), id)
      user.state = 'Y'
      together(queue, 'HSET', users, id, pack_user(user))
      queue.serving = math.max(queue.serving, user.place)
      queue.changed[#queue.changed + 1] = '+' .. id
      count(queue, 'away', 1)
    elseif waits then
      local predicted = user.eta
      give_ticket(queue, user, pick().id, new_ticket())
      called = called + 1
      queue.serving = math.max(queue.serving, user.place)
      queue.changed[#queue.changed + 1] = '+' .. id
      replies[#replies + 1] = id
      replies[#replies + 1] = math.max(0, math.floor((queue.thing.us - user.place) / 1000))
      replies[#replies + 1] = predicted
      replies[#replies + 1] = traced and redis.call('HGET', traces, id) or ''
    end
  end
  call_collected()
end
if called > 0 then
  count(queue, 'admitted', called)
end
take(called)
local passed = measure_flow(queue, length, called)
local after = { taken = before.taken + called, held = before.held + called }
measure_turnover(queue, passed, before, after, math.max(0, free - called))
note_minute(queue, history, replies)

local busy = redis.call('ZCARD', waiting) + redis.call('ZCARD', away) + redis.call('ZCARD', leases)
  + redis.call('ZCARD', seats)
local due_in = busy > 0 and until_next_visit(queue) or -1
local first = due_in < 0 and redis.call('ZRANGE', finished, 0, 0, 'WITHSCORES') or {}
if first[2] then
  due_in = math.max(1000, tonumber(first[2]) - queue.now)
end
-- A request that comes later than this wakes the workers: the index of due queues, in another slot, may have lost this
-- one.
redis.call('HSET', meta, 'visit_by', busy > 0 and text_of(queue.now + due_in + VISIT_LATE_MS) or '0')
close_queue(queue)
if #queue.changed > 0 then
  hint(events, 'changed =' .. queue.epoch .. ':' .. text_of(queue.serving) .. ' ' .. table.concat(queue.changed, ' '))
end
return { (clearing or budget <= 0) and 1 or 0, due_in, unpack(replies) }
