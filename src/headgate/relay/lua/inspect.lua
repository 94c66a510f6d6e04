#!lua flags=no-writes
--- Find contradictions in one part of an upstream, some members at a time, without changing anything. The members of
--- one step are compared with the rest of the upstream as it is at that moment.
--- KEYS     1 meta (hash)   2 policy (hash)   3 users (zset user -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 flying (zset unit -> lease)   7 answered (zset unit -> ms)
---          8 opened (zset unit -> lease)   9 state (hash)   10 jobs (stream of all that have not ended)
---          11 orders (hash)   12 ends (zset id -> ms)   13 deadlines (zset id -> ms)
--- ARGV     1 context   2 part (one of these names, or sums)   3 cursor (0 at first)   4 count   5 longest_ms (of any lease)
--- RETURNS  cursor (0: the end), members looked at, then what was found, …
--@include clock
--@include rules_record
local meta, policy, users, turns, heads = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local flying, answered, opened, state = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local jobs, orders, ends, deadlines = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local context, part, cursor, count, longest_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local MOST_WORDS = 100

local found = {}
local function check(holds_true, words)
  if not holds_true then
    found[#found + 1] = words
  end
end

local function unfinished(job_state)
  return job_state == 'waiting' or job_state == 'sending'
end

--- Give the id of the job at an entry of the stream, or nil.
local function job_at(entry)
  local reply = entry and redis.pcall('XRANGE', jobs, entry, entry, 'COUNT', 1)
  return reply and reply[1] and reply[1][2][2]
end

local looks = {}

function looks.turns(user)
  check(redis.call('HEXISTS', heads, user) == 1, 'user ' .. user .. ' has a turn and nobody who takes it')
  check(redis.call('ZSCORE', users, user), 'user ' .. user .. ' has a turn and is not in the list of users')
end

function looks.heads(user)
  check(redis.call('ZSCORE', turns, user), 'user ' .. user .. ' has somebody who waits for a turn, and no turn')
end

function looks.deadlines(id)
  check(unfinished(redis.call('HGET', orders, id .. ':state')), 'job ' .. id .. ' has a deadline and does not wait')
end

function looks.ends(id)
  local ended = redis.call('HGET', orders, id .. ':state')
  check(ended and not unfinished(ended), 'job ' .. id .. ' has a result to forget and has not ended')
end

function looks.orders(field, value)
  local id, name = string.match(field, '^(.*):(%l+)$')
  if name ~= 'state' then
    check(id and redis.call('HEXISTS', orders, id .. ':state') == 1, 'the field ' .. field .. ' belongs to no job')
    return
  end
  local has_deadline = redis.call('ZSCORE', deadlines, id)
  if not unfinished(value) then
    check(redis.call('ZSCORE', ends, id), 'job ' .. id .. ' has ended and would never be forgotten')
    return
  end
  local saved = redis.call('HMGET', orders, id .. ':place', id .. ':entry', id .. ':attempts')
  check(saved[1] and redis.call('HEXISTS', orders, id .. ':order') == 1, 'job ' .. id .. ' waits without an order')
  check(job_at(saved[2]) == id, 'job ' .. id .. ' waits and is not in the stream of jobs')
  -- One that was being sent at its deadline has none any more, also when its upstream refused it and it waits again.
  check(saved[3] or has_deadline, 'job ' .. id .. ' waits and would never be overdue')
end

function looks.jobs(entry, fields)
  local id = fields[2] or ''
  local saved = redis.call('HMGET', orders, id .. ':state', id .. ':entry')
  check(unfinished(saved[1]) and saved[2] == entry, 'entry ' .. entry .. ' of the stream belongs to no job that waits')
end

if part == 'sums' then
  local thing = open_thing(meta, context, 0)
  local saved = redis.call('HMGET', policy, 'version', 'gone', 'shared')
  if saved[1] then
    check(saved[2] or redis.call('HEXISTS', policy, 'document') == 1, 'it has a version and no policy')
    check(#read_rules(saved[3]) > 0 or redis.call('EXISTS', flying, answered, opened, state, turns, heads) == 0,
      'it counts what users share, and they share no limit')
  end
  local standing, known = redis.call('ZCARD', turns), redis.call('HLEN', heads)
  check(standing == known, standing .. ' users have a turn and ' .. known .. ' have somebody who takes it')
  local late = '(' .. text_of(thing.now + longest_ms)
  local stuck = redis.call('ZCOUNT', flying, late, '+inf') + redis.call('ZCOUNT', opened, late, '+inf')
  check(stuck == 0, stuck .. ' shared permits are leased for longer than any lease')
  local ahead = redis.call('ZCOUNT', answered, '(' .. text_of(thing.now), '+inf')
  check(ahead == 0, ahead .. ' shared permits were answered in the future')
  return { '0', 0, unpack(found) }
end
local members = {}
if part == 'jobs' then
  local reply = redis.call('XRANGE', jobs, cursor == '0' and '-' or '(' .. cursor, '+', 'COUNT', count)
  for _, entry in ipairs(reply) do
    members[#members + 1], members[#members + 2] = entry[1], entry[2]
  end
  cursor = #reply == tonumber(count) and reply[#reply][1] or '0'
elseif part == 'orders' then
  -- Orders and responses are large, and are left where they are.
  local reply = redis.call('HSCAN', orders, cursor, 'MATCH', '*:[^or]*', 'COUNT', count)
  cursor, members = reply[1], reply[2]
elseif part == 'heads' then
  local reply = redis.call('HSCAN', heads, cursor, 'COUNT', count)
  cursor, members = reply[1], reply[2]
else
  local sets = { turns = turns, ends = ends, deadlines = deadlines }
  local reply = redis.call('ZSCAN', sets[part], cursor, 'COUNT', count)
  cursor, members = reply[1], reply[2]
end
for i = 1, #members, 2 do
  looks[part](members[i], members[i + 1])
end
return { cursor, #members / 2, unpack(found, 1, math.min(#found, MOST_WORDS)) }
