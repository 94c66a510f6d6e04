#!lua flags=no-writes
--- Find contradictions in the keys of one user of an upstream, all at one moment, without changing anything.
--- KEYS     1 meta (hash)   2 policy (hash)   3 users (zset user -> ms)   4 owners (zset user -> ms)   5 orders (hash)
---          6 crowd (hash process user -> waiters)   7 flying (zset unit -> lease)   8 answered (zset unit -> ms)
---          9 state (hash)   10 line/<user> (zset waiter -> place)   11 patience/<user> (zset waiter -> ms)
---          12 fly/<user> (zset unit -> lease)   13 done/<user> (zset unit -> ms)   14 open/<user> (zset unit -> lease)
---          15 user/<user> (hash)   16 backlog/<user> (zset units:id -> place)   17 begun/<user> (zset units:id -> place)
--- ARGV     1 context   2 user   3 most (members looked at in each key)   4 longest_ms (of any lease)
---          5 late_ms (a request without an answer is on its way)   6 processes (with waiters in this line, apart by spaces)
---          7 suspects (ids of jobs that name this user, apart by spaces)
--- RETURNS  members looked at, 1 if these are all, ids of the jobs in line, then what was found, …
--@include clock
--@include rules_record
--@include waiter_record
--@include job_record
--@include crowd_record
local meta, policy, users, owners, orders, crowd = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local flying, answered, state, line, patience, fly = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local done, open, own, backlog, begun = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local context, user, most, longest_ms, late_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local processes, suspects = ARGV[6], ARGV[7]
local MOST_WORDS = 20

local thing = open_thing(meta, context, 0)
local members, whole, ids, found = 0, true, {}, {}
local function check(holds_true, words)
  if not holds_true then
    found[#found + 1] = 'user ' .. user .. ': ' .. words
  end
end

--- Read the first members of a set; of a larger one the rest is not looked at.
local function first(set, ...)
  local size = redis.call('ZCARD', set)
  members, whole = members + math.min(size, most), whole and size <= most
  return size > 0 and redis.call('ZRANGE', set, 0, most - 1, ...) or {}, size
end

check(redis.call('ZSCORE', users, user)
  or redis.call('EXISTS', line, patience, fly, done, open, own, backlog, begun) == 0,
  'there are keys, and the list of users has no such user: nobody looks after them before its next request')

local waiters, length = first(line)
local patient, counted = redis.call('ZCARD', patience), {}
check(length == patient, length .. ' wait in line and ' .. patient .. ' have a deadline')
for _, waiter in ipairs(waiters) do
  check(redis.call('ZSCORE', patience, waiter), 'waiter ' .. waiter .. ' has no deadline')
  local process = process_of(waiter) or waiter
  counted[process] = (counted[process] or 0) + 1
end
for process in string.gmatch(processes, '%S+') do
  counted[process] = counted[process] or 0
end
for process, number in pairs(length <= most and counted or {}) do
  local known = tonumber(redis.call('HGET', crowd, crowd_field(process, user)) or 0)
  check(known == number, 'process ' .. process .. ' has ' .. number .. ' waiters in line and ' .. known .. ' are counted')
end

local late = '(' .. text_of(thing.now + longest_ms)
local stuck = redis.call('ZCOUNT', fly, late, '+inf') + redis.call('ZCOUNT', open, late, '+inf')
check(stuck == 0, stuck .. ' permits are leased for longer than any lease')
local ahead = redis.call('ZCOUNT', done, '(' .. text_of(thing.now), '+inf')
check(ahead == 0, ahead .. ' permits were answered in the future')
members = members + redis.call('ZCARD', fly) + redis.call('ZCARD', done)

-- What a user has in flight counts among what all of them share. It may not where the limit came later (then it is
-- paused for so long), after a step of the clock, which prolongs leases one after the other, and when a request was
-- lost after its lease; the lease of such a one ends within late_ms.
local shared = #read_rules(redis.call('HGET', policy, 'shared')) > 0
  and tonumber(redis.call('HGET', state, 'pause') or 0) <= thing.now and thing.raw - thing.step > 2 * longest_ms
local surely = '(' .. text_of(thing.now + late_ms)
local units = shared and redis.call('ZRANGEBYSCORE', fly, surely, '+inf', 'LIMIT', 0, most) or {}
for _, unit in ipairs(units) do
  check(redis.call('ZSCORE', flying, unit) or redis.call('ZSCORE', answered, unit),
    'permit ' .. unit .. ' is in flight and does not count at the limits that users share')
end

local function unfinished(id)
  local saved = redis.call('HMGET', orders, id .. ':state', id .. ':place')
  return (saved[1] == 'waiting' or saved[1] == 'sending') and saved[2]
end

for name, set in pairs({ backlog = backlog, begun = begun }) do
  local entries = first(set, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local _, id = unpack_job(entries[i])
    id = id or entries[i]
    local place = unfinished(id)
    check(place and tonumber(place) == tonumber(entries[i + 1]),
      'job ' .. id .. ' is in its ' .. name .. ' and does not wait there')
    check(name == 'begun' or not redis.call('ZSCORE', begun, entries[i]), 'job ' .. id .. ' is in its backlog and has begun')
    ids[#ids + 1] = id
  end
end
check(redis.call('ZSCORE', owners, user) or redis.call('EXISTS', backlog, begun) == 0,
  'there are jobs, and the list of users with jobs has no such user: nobody would send them')
for id in string.gmatch(suspects, '%S+') do
  local place = unfinished(id)
  check(not place or redis.call('ZCOUNT', backlog, place, place) + redis.call('ZCOUNT', begun, place, place) > 0,
    'job ' .. id .. ' waits and has no place: nobody would send it')
end
return { members, whole and 1 or 0, ids, unpack(found, 1, math.min(#found, MOST_WORDS)) }
