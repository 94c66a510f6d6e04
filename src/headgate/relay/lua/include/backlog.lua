--- A user's backlog: the jobs that wait and have had no permit yet, each with its place in the user's line.
---
--- Runners take only the first few jobs of each user, and these stand in the line with their places; the others wait in
--- the backlog alone. A member is `units:id`. Places are never given twice, so a job that stands in the line as well is
--- found there by its place. While no runner is alive, jobs delay no other waiter.
--@include text_of
--@include hint
--@include upstream
--@include job_record
local HELD = 32
local MOST_AHEAD = 64

--- Make a user due for runners, who take users in the order in which they became due; an earlier time stands.
local function make_due(owners, user, now)
  redis.call('ZADD', owners, 'LT', text_of(now), user)
end

--- Count the jobs before a place (nil: all) that do not stand in the line yet, and their units; of many, the mean of
--- the first ones is taken for the others.
local function jobs_before(backlog, line, place)
  local before = place and redis.call('ZCOUNT', backlog, '-inf', '(' .. text_of(place)) or redis.call('ZCARD', backlog)
  if before == 0 then
    return 0, 0
  end
  local looked, standing, units = math.min(before, MOST_AHEAD), 0, 0
  local found = redis.call('ZRANGE', backlog, 0, looked - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if redis.call('ZCOUNT', line, found[i + 1], found[i + 1]) > 0 then
      standing = standing + 1
    else
      units = units + unpack_job(found[i])
    end
  end
  if before > looked and looked > standing then
    units = math.ceil(units * (before - standing) / (looked - standing))
  end
  return before - standing, math.max(units, before - standing)
end

--- Count the jobs before a place that do not stand in the line yet, and their units; none while no runner is alive.
local function awaited_jobs(keys, thing, place, jobs)
  if jobs == 0 or not alive(keys.relays, thing, RUNNERS) then
    return 0, 0
  end
  return jobs_before(keys.backlog, keys.line, place)
end

--- Mark the job at a place, if there is one, as begun: it has a permit, and a runner may take another.
local function begin_job(keys, user, place, now)
  local member = place and redis.call('ZRANGEBYSCORE', keys.backlog, text_of(place), text_of(place))[1]
  if member then
    redis.call('ZREM', keys.backlog, member)
    redis.call('ZADD', keys.begun, text_of(place), member)
    make_due(keys.owners, user, now)
    if redis.call('EXISTS', keys.backlog) == 1 then
      hint(keys.events, 'job')
    end
  end
end
