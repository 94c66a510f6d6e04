--- Measures how fast seats are given up, and forecasts from that when users in line come in.
---
--- Filling seats that were free anyway says nothing about users further behind: they get seats that others give up. So
--- the time that a seat is taken is measured by itself, in two parts: held until its owner comes in, then taken until
--- they go. Each part is its time over all seats divided by the number of its ends, which is right however few have
--- ended yet. Of many departures the latest are enough, so the more there are, the faster older ones fade. Seats that
--- vanish with a dead server are no departures, because they make no room.
---
--- A user who was called and does not come holds a seat for the whole time of a ticket, and more and more seats are
--- held so until the first of these tickets ends. The forecast includes that: a user who has not come LATE_MS after the
--- call is late, the share of late users is known soon, and until it is known when they come they are assumed to hold
--- their seats to the end. Before the first calls, one user in twenty is assumed to be late.
--@include queue
--@include forecast_record
local MANY_FREED = 400
local QUICKEST_FADE = 0.25
local LATE_MS = 2000
local SUPPOSED_LATE = 1
local SUPPOSED_CALLS = 20

--- The fields of `turnover` in meta: seats freed, seat time taken and seats taken; prompt calls, the time they took and
--- seats held; late calls, the time their seats were held beyond LATE_MS, how many of them ended and how many are held.
local SEEN = { 'freed', 'taken_ms', 'taken', 'prompt', 'prompt_ms', 'held', 'late', 'late_ms', 'late_ends', 'late_held' }
local FADING = { 'freed', 'taken_ms', 'prompt', 'prompt_ms', 'late', 'late_ms', 'late_ends' }

--- Give the milliseconds for which a ticket holds its seat after its owner has become late.
local function late_for(queue)
  return queue.ticket_ms - math.min(LATE_MS, queue.ticket_ms / 4)
end

local function read_seen(queue, before)
  local seen, index = { taken = before.taken - before.held, held = before.held }, 0
  for number in string.gmatch(queue.turnover, '%S+') do
    index = index + 1
    seen[SEEN[index]] = tonumber(number)
  end
  for _, name in ipairs(SEEN) do
    seen[name] = seen[name] or 0
  end
  return seen
end

--- Take the users who came in since the last step, as redeem counted them: number, and sum of ms after that step.
local function take_arrivals(queue)
  local noted = redis.call('HMGET', queue.keys.meta, 'came', 'came_ms')
  if noted[1] then
    redis.call('HDEL', queue.keys.meta, 'came', 'came_ms')
  end
  return tonumber(noted[1] or 0), tonumber(noted[2] or 0)
end

--- Add the changes since the last step.
local function add_step(queue, seen, passed, before)
  local fading = math.exp(-passed / (FLOW_MS * math.max(QUICKEST_FADE, math.min(1, MANY_FREED / math.max(seen.freed, 1)))))
  for _, name in ipairs(FADING) do
    seen[name] = seen[name] * fading
  end
  local gone = math.max(0, seen.taken + seen.held - before.taken - queue.vanished.taken)
  local ends = math.max(0, seen.held - before.held - queue.vanished.held)

  -- A user who came held the seat until then and took it from then on; one who left did so half-way, on average.
  local came, came_ms = take_arrivals(queue)
  came = math.min(came, ends)
  local sat_ms = came * passed - math.min(came * passed, came_ms)
  local left = math.max(0, gone - (ends - came))
  seen.freed = seen.freed + gone
  seen.taken_ms = seen.taken_ms + math.max(0, seen.taken * passed + sat_ms - left * passed / 2)

  local late_to = queue.time + late_for(queue) -- the last deadline of a late user
  local late_held = redis.call('ZCOUNT', queue.keys.holds, '-inf', text_of(late_to))
  local late = redis.call('ZCOUNT', queue.keys.holds, '(' .. text_of(late_to - passed), text_of(late_to))
  local late_ends = math.min(ends, math.max(0, seen.late_held + late - late_held))
  seen.prompt = seen.prompt + ends - late_ends
  seen.prompt_ms = seen.prompt_ms + math.max(0, (seen.held - seen.late_held) * passed - sat_ms)
  seen.late = seen.late + late
  seen.late_ms = seen.late_ms + seen.late_held * passed
  seen.late_ends = seen.late_ends + late_ends
  seen.late_held = late_held
end

--- Pack the forecast for this number of seats, of which some are free.
local function pack_forecast(queue, seen, seats, free)
  local limit = math.min(queue.rate or math.huge, queue.batch * 1000 / queue.tick_ms)
  if queue.paused or (queue.opens and queue.thing.raw < queue.opens) then
    limit = 0
  end
  local rate, first, turn_ms, slowing_ms, doubt, lasts = 0, 0, 0, 0, 0, 0
  if seen.freed >= 1 and seen.taken_ms > 0 then
    local calls, late = seen.prompt + seen.late, seen.late + SUPPOSED_LATE
    local share = late / (calls + SUPPOSED_CALLS)
    lasts = math.min(late_for(queue), (seen.late_ms + late_for(queue)) / (seen.late_ends + 1))
    turn_ms = (calls >= 1 and seen.prompt_ms / calls or 0) + seen.taken_ms / seen.freed
    rate = math.min(limit, seats * 1000 / (turn_ms + share * lasts))
    first = math.min(limit, (seats - seen.late_held) * 1000 / turn_ms)
    slowing_ms = turn_ms / share
    doubt = share / math.sqrt(late) * lasts / (turn_ms + share * lasts)
  end
  -- With few departures measured, many more may follow in the same time; this is hardly exceeded.
  local fastest, all_ms = limit, seen.taken_ms + seen.prompt_ms + seen.late_ms
  if all_ms > 0 then
    fastest = math.min(limit, seats * 1000 * (seen.freed + 2 + 2 * math.sqrt(seen.freed + 1)) / all_ms)
  end
  return struct.pack(FORECAST_FORM, math.min(free, 4294967295), rate, seen.freed, turn_ms / 1000, limit, fastest,
    queue.tick_ms / 1000, first, slowing_ms / 1000, doubt, lasts / 1000)
end

--- Measure turnover and write the forecast, from the seats taken before and after this step, and those free.
local function measure_turnover(queue, passed, before, after, free)
  local seen, numbers = read_seen(queue, before), {}
  add_step(queue, seen, passed, before)
  seen.taken, seen.held = after.taken - after.held, after.held
  for index, name in ipairs(SEEN) do
    numbers[index] = string.format('%.6f', seen[name])
  end
  redis.call('HSET', queue.keys.meta, 'turnover', table.concat(numbers, ' '), 'forecast',
    pack_forecast(queue, seen, after.taken + free, free))
end
