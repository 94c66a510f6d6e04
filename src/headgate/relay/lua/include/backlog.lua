--- A user's backlog: the jobs that wait and have had no permit yet, each with its place in the user's line.
---
--- Runners take only the first few jobs of each user, and these stand in the line with their places; the others wait in
--- the backlog alone. A member is `units:id`. Places are never given twice, so a job that stands in the line as well is
--- found there by its place. While no runner is alive, jobs hold up nobody.
--@include text_of
--@include hint
--@include line
local HELD = 32
local RUNNERS = 'jobs'

--- Let runners look at a user now. Users are looked at in the order in which they became due, so one who is due already
--- keeps that time.
local function look_at(owners, user, now)
  redis.call('ZADD', owners, 'LT', text_of(now), user)
end

--- Count the jobs before a place (nil: all) that do not stand in the line yet, and their units; of many, the mean of the
--- first ones is taken for the others.
local function jobs_before(backlog, line, place)
  local before = place and redis.call('ZCOUNT', backlog, '-inf', '(' .. text_of(place)) or redis.call('ZCARD', backlog)
  if before == 0 then
    return 0, 0
  end
  local looked, standing, units = math.min(before, LOOK), 0, 0
  local found = redis.call('ZRANGE', backlog, 0, looked - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if redis.call('ZCOUNT', line, found[i + 1], found[i + 1]) > 0 then
      standing = standing + 1
    else
      units = units + tonumber(string.match(found[i], '^%d+'))
    end
  end
  if before > looked and looked > standing then
    units = math.ceil(units * (before - standing) / (looked - standing))
  end
  return before - standing, math.max(units, before - standing)
end

--- Count the jobs that go before whoever stands at a place, and do not stand in the line yet, and their units.
local function awaited_jobs(keys, thing, place, jobs)
  if jobs == 0 or not alive(keys.relays, thing, RUNNERS) then
    return 0, 0
  end
  return jobs_before(keys.backlog, keys.line, place)
end

--- Note that whoever stood at this place has a permit: a job that did has begun, and a runner may take another.
local function begin_job(keys, user, place, now)
  local member = place and redis.call('ZRANGEBYSCORE', keys.backlog, text_of(place), text_of(place))[1]
  if member then
    redis.call('ZREM', keys.backlog, member)
    redis.call('ZADD', keys.begun, text_of(place), member)
    look_at(keys.owners, user, now)
    if redis.call('EXISTS', keys.backlog) == 1 then
      hint(keys.events, 'job')
    end
  end
end
