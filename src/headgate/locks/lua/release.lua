#!lua flags=allow-oom
--- Release a lock, or leave its line. The next waiter is called; one of the same process gets the lock at once.
--- KEYS     group lock
--- ARGV     1 context   2 holder   3 nonce (names this call; empty: leave whatever it has, and refuse nothing)
---          4 owner (the process that gives it back)   5 announce
---          6 request (leave nothing that another request in this name has asked for since, -: whatever)
--- RETURNS  1 if it held the lock, 2 if it was in line, 0 if neither; if it has given it to another of this process also
---          that holder, and unless it was given long ago its fence, now, ms until it opens
--- REFUSES  NOT_HOLDER
--- AGAIN    same answer: the nonces of the last releases are remembered
--@include fast_path
--@include lock_keys
local context, holder, nonce, owner, announce = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local request = ARGV[6]
local REMEMBERED_BYTES = 150

local saved = read_lock(meta)
local released = nonce .. ' ' .. string.sub(saved[17] or '', 1, REMEMBERED_BYTES)
if saved[9] == holder and saved[18] ~= '1' and not announce and request == '-' then
  local raw, raw_us = server_time()
  local time = fast_path_time(saved, context, raw, raw_us)
  if time and time < tonumber(saved[11]) then
    redis.call('HSET', meta, 'raw', text_of(raw), 'holder', '', 'free', text_of(time), 'released', released)
    return {1}
  end
end

--@include lease
--@include line
local lock = open_lock(meta, context, saved)
local mine = lock.held and lock.holder == holder
if request ~= '-' then
  local _, waited = read_waiter(waiters, holder)
  local last = mine and redis.call('HGET', meta, 'request') or waited
  if last ~= request then
    return {0}
  end
end
if mine then
  local heir, place = unpack(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES'))
  local heir_owner, asked, ttl_ms, delay_ms, label
  if heir and nonce ~= '' then
    heir_owner, asked, ttl_ms, delay_ms, label = read_waiter(waiters, heir)
  end
  if not ttl_ms or heir_owner ~= owner then
    close_thing(lock, 'holder', '', 'free', text_of(lock.now), 'recalled', '', 'released', released,
      'lined', heir and '1' or '')
    publish_free(lock, line, events, announce)
    return {1}
  end
  leave_line(line, waiters, owners, heir)
  local fence = give_lock(lock, heir, ttl_ms, delay_ms, label, 'released', released, 'giver', holder,
    'request', asked)
  -- Waiters of this process learn it from the answer.
  if announce or redis.call('HLEN', owners) > redis.call('HEXISTS', owners, owner) then
    publish_taken(lock, events, ttl_ms + delay_ms, text_of(tonumber(place)))
  end
  return {1, heir, fence, text_of(lock.now), text_of(ttl_ms + delay_ms)}
end
local before = redis.call('HMGET', meta, 'released', 'giver')
local given = before[2] == holder and lock.held
if nonce ~= '' then
  if not string.find(' ' .. (before[1] or ''), ' ' .. nonce .. ' ', 1, true) then
    return redis.error_reply('NOT_HOLDER The lease of this holder has ended, or it never held this lock.')
  end
  if given then
    return {1, lock.holder, lock.fence, text_of(lock.now), text_of(lock.opens - lock.now)}
  end
  return {1}
end

local first = redis.call('ZRANGE', line, 0, 0)[1]
if leave_line(line, waiters, owners, holder) == 0 then
  return {0, given and lock.holder or nil}
end
if first == holder and not lock.held and lock.now >= lock.opens then
  -- It was the turn of this waiter: the grace of the next one begins now.
  if lock.holder then
    record_loss(lock, events, 'expired')
  end
  redis.call('HSET', meta, 'holder', '', 'free', text_of(lock.now), 'recalled', '')
  publish_free(lock, line, events, announce)
end
close_thing(lock)
return {2}
