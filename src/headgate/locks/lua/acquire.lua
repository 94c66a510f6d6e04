#!lua
--- Take a lock, or a place in its line; waiters who were called and did not come within the grace are passed over.
--- KEYS     group lock
--- ARGV     1 context   2 holder   3 owner (the process that waits)   4 ttl_ms   5 delay_ms   6 grace_ms
---          7 join (0: only try, 1: wait in line, 2: and be given it by a release of its own process)
---          8 former (the place it had before, 0: none)   9 label   10 announce
---          11 request (names this one among several in the same holder's name, -: there is but one)
--- RETURNS  1, fence, now; or 0, place, ms until it opens (below 0: since), processes ahead, now,
---          1 if it had lost its place and has it back, else 0
--- AGAIN    same answer: a holder keeps its fence, a waiter its place
--@include fast_path
--@include lock_keys
local context, holder, owner, ttl_ms, delay_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local grace_ms, join, former, label, announce = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9], ARGV[10] == '1'
local joins, handed, request = join ~= '0', join == '2', ARGV[11]
local MOST_PASSED = 1000

local saved = read_lock(meta)
if saved[9] == '' and saved[18] ~= '1' and not announce then
  local raw, raw_us = server_time()
  local time, number = fast_path_time(saved, context, raw, raw_us)
  if time and time >= tonumber(saved[14]) then
    local now, fence = text_of(time), text_of(math.max(saved[4] + 1, number))
    redis.call('HSET', meta, 'raw', text_of(raw), 'last', fence, 'holder', holder, 'fence', fence,
      'ends', text_of(time + ttl_ms), 'since', now)
    if tonumber(saved[12]) ~= ttl_ms or tonumber(saved[13]) ~= delay_ms or saved[16] ~= label or saved[15] == '1' then
      redis.call('HSET', meta, 'ttl', ttl_ms, 'delay', delay_ms, 'label', label, 'recalled', '')
    end
    if request ~= '-' then
      redis.call('HSET', meta, 'request', request)
    end
    return {1, fence, now}
  end
end

--@include lease
local lock = open_lock(meta, context, saved)
local now = text_of(lock.now)
if lock.held and lock.holder == holder then
  close_thing(lock, 'ends', text_of(lock.now + ttl_ms), 'ttl', ttl_ms, 'request', request)
  return {1, lock.fence, now}
end

local waiting = redis.call('ZCARD', line)
--@include line
local place = waiting > 0 and redis.call('ZSCORE', line, holder)
place = place and text_of(tonumber(place))
local newcomer = not place and former == '0'
local passed_over = (joins and not place and not newcomer) and 1 or 0
if joins and not place and (waiting > 0 or lock.held or lock.now < lock.opens) then
  place = newcomer and text_of(next_number(lock)) or former
  join_line(line, waiters, owners, holder, place, owner, pack_waiter(owner, request, handed, ttl_ms, delay_ms, label))
  redis.call('HSET', meta, 'lined', '1')
  waiting = waiting + 1
elseif joins and place and request ~= '-' then
  local first_owner = read_waiter(waiters, holder) or owner
  redis.call('HSET', waiters, holder, pack_waiter(first_owner, request, handed, ttl_ms, delay_ms, label))
end

-- Each process ahead has one grace to answer a call; all waiters of a dead process are passed over together.
local rank = place and redis.call('ZRANK', line, holder) or waiting
local ahead = 0
if rank > 0 then
  local alone = place and redis.call('HGET', owners, owner) == '1'
  ahead = math.min(rank, redis.call('HLEN', owners) - (alone and 1 or 0))
end

if lock.held or lock.now < lock.opens + ahead * grace_ms then
  close_thing(lock)
  return {0, place or '0', text_of(lock.opens - lock.now), ahead, now, passed_over}
end

if lock.holder then
  record_loss(lock, events, 'expired')
end
if newcomer and rank > 0 and not lock.recalled then
  -- Waiters were called long ago and may have missed it: none is passed over before a second call.
  close_thing(lock, 'holder', '', 'free', now, 'recalled', '1')
  publish_free(lock, line, events, announce)
  return {0, place or '0', '0', ahead, now, passed_over}
end

local gone = 0
if rank > 0 then
  for _, passed in ipairs(redis.call('ZRANGE', line, 0, math.min(rank, MOST_PASSED) - 1)) do
    gone = gone + leave_line(line, waiters, owners, passed)
  end
end
if place then
  gone = gone + leave_line(line, waiters, owners, holder)
end
local lined = waiting > gone and '1' or ''
local fence = give_lock(lock, holder, ttl_ms, delay_ms, label, 'request', request, 'lined', lined)
if waiting > gone or announce then
  publish_taken(lock, events, ttl_ms + delay_ms, place or fence)
end
return {1, fence, now}
