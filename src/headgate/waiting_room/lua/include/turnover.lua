--- How fast seats are given up, and what that lets those in line expect.
---
--- Filling seats that were free anyway says nothing of those further behind: they get seats that somebody gives up. So
--- how long a seat is taken is measured by itself, in its two parts: held until its owner comes in, then taken until
--- they go. Each part is its time over all seats by the number of its ends, which is right however few have ended yet.
--- Of many departures the latest tell enough, so the more there are, the faster the past fades. Seats that vanish with a
--- dead server are no departures: those who sat there did not make room for anybody.
---
--- Who was called and does not come holds a seat for the whole time of a ticket, and more and more seats are held so until
--- the first of these tickets ends. That is foreseen: whoever is not there LATE_MS after the call is late, the share of the
--- late is known soon, and until it is seen when they come they are taken to hold their seats to the end. Before anybody
--- was called, one in twenty is taken to be late.
--@include queue
local MANY_FREED = 400
local QUICKEST_FADE = 0.25
local LATE_MS = 2000
local SUPPOSED_LATE = 1
local SUPPOSED_CALLS = 20

--- Seats that were freed; for how long others were taken, and how many are; calls that were followed soon, how long that
--- took all together, and how many seats are held; calls that were not, for how long their seats were held beyond that,
--- how many of these ended, and how many are still held.
local SEEN = { 'freed', 'taken_ms', 'taken', 'prompt', 'prompt_ms', 'held', 'late', 'late_ms', 'late_ends', 'late_held' }
local FADING = { 'freed', 'taken_ms', 'prompt', 'prompt_ms', 'late', 'late_ms', 'late_ends' }

--- For how many ms a ticket holds its seat after its owner has become late.
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

--- Take and forget what was noted of those who came since the last step: how many, and how long after it all together.
local function take_comers(queue)
  local noted = redis.call('HMGET', queue.keys.meta, 'came', 'came_ms')
  if noted[1] then
    redis.call('HDEL', queue.keys.meta, 'came', 'came_ms')
  end
  return tonumber(noted[1] or 0), tonumber(noted[2] or 0)
end

--- Add what happened since the last step.
local function see(queue, seen, passed, before)
  local fading = math.exp(-passed / (FLOW_MS * math.max(QUICKEST_FADE, math.min(1, MANY_FREED / math.max(seen.freed, 1)))))
  for _, name in ipairs(FADING) do
    seen[name] = seen[name] * fading
  end
  local gone = math.max(0, seen.taken + seen.held - before.taken - queue.vanished.taken)
  local ends = math.max(0, seen.held - before.held - queue.vanished.held)

  -- Who came held a seat until then and sat in it from then on; who left did so half-way, as a rule.
  local came, came_ms = take_comers(queue)
  came = math.min(came, ends)
  local sat_ms = came * passed - math.min(came * passed, came_ms)
  local left = math.max(0, gone - (ends - came))
  seen.freed = seen.freed + gone
  seen.taken_ms = seen.taken_ms + math.max(0, seen.taken * passed + sat_ms - left * passed / 2)

  local late_to = queue.time + late_for(queue) -- the last deadline of who is late
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

--- Pack what to expect of so many seats, of which some are free.
local function foresee(queue, seen, seats, free)
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
  -- With so few departures seen, many more may follow in the same time; hardly more than these.
  local fastest, all_ms = limit, seen.taken_ms + seen.prompt_ms + seen.late_ms
  if all_ms > 0 then
    fastest = math.min(limit, seats * 1000 * (seen.freed + 2 + 2 * math.sqrt(seen.freed + 1)) / all_ms)
  end
  return struct.pack(FORECAST_FORM, math.min(free, 4294967295), rate, seen.freed, turn_ms / 1000, limit, fastest,
    queue.tick_ms / 1000, first, slowing_ms / 1000, doubt, lasts / 1000)
end

--- Measure how seats are given up: what was taken before this step called anybody, what is taken after it, what is free.
local function measure_turnover(queue, passed, before, after, free)
  local seen, numbers = read_seen(queue, before), {}
  see(queue, seen, passed, before)
  seen.taken, seen.held = after.taken - after.held, after.held
  for index, name in ipairs(SEEN) do
    numbers[index] = string.format('%.6f', seen[name])
  end
  redis.call('HSET', queue.keys.meta, 'turnover', table.concat(numbers, ' '), 'forecast',
    foresee(queue, seen, after.taken + free, free))
end
