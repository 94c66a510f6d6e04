#!lua flags=allow-oom
--- Give a lock back, or leave its line. The next is called; one of the same process has it at once, since that process lives.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)   3 waiters (hash holder -> owner, terms)
---          4 owners (hash owner -> waiters)   5 events (stream)
--- ARGV     1 context   2 holder   3 nonce (names this call; empty: leave whatever it has, and refuse nothing)
---          4 owner (the process that gives it back)   5 announce
---          6 request (leave nothing that another request in this name has asked for since, -: whatever)
--- RETURNS  1 if it held the lock, 2 if it was in line, 0 if neither; if it has given it to another of this process also
---          that holder, and unless it was given long ago its fence, now, ms until it opens
--- REFUSES  NOT_HOLDER
--- AGAIN    same answer: the nonces of the last releases are remembered
--@include fast_path
local meta, line, waiters, owners, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
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
  local last = mine and redis.call('HGET', meta, 'request') or request_of(waiters, holder)
  if last ~= request then
    return {0}
  end
end
if mine then
  local heir, place = unpack(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES'))
  local ttl_ms, delay_ms, label, asked
  if heir and nonce ~= '' then
    ttl_ms, delay_ms, label, asked = read_terms(waiters, heir, owner)
  end
  if not ttl_ms then
    close_thing(lock, 'holder', '', 'free', text_of(lock.now), 'recalled', '', 'released', released,
      'lined', heir and '1' or '')
    call_head(lock, line, events, announce)
    return {1}
  end
  leave_line(line, waiters, owners, heir)
  local fence = give_lock(lock, heir, ttl_ms, delay_ms, label, 'released', released, 'giver', holder,
    'request', asked)
  -- Those of this process know it from the answer.
  if announce or redis.call('HLEN', owners) > redis.call('HEXISTS', owners, owner) then
    tell_taken(lock, events, ttl_ms + delay_ms, text_of(tonumber(place)))
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
  -- It was this one's turn: the next has a grace of its own from now.
  if lock.holder then
    note_loss(lock, events, 'expired')
  end
  redis.call('HSET', meta, 'holder', '', 'free', text_of(lock.now), 'recalled', '')
  call_head(lock, line, events, announce)
end
close_thing(lock)
return {2}
