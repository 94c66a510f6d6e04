#!lua
--- Give a lock back, or leave its line, and call the next.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)   3 waiters (hash holder -> owner)
---          4 owners (hash owner -> waiters)   5 events (stream)
--- ARGV     1 context   2 holder   3 nonce (names this call; empty: leave whatever it has, and refuse nothing)
---          4 announce
--- RETURNS  1 if it held the lock, 2 if it was in line, 0 if neither
--- REFUSES  NOT_HOLDER
--- AGAIN    same answer: the nonces of the last releases are remembered
--@include clock
--@include lease
--@include line
local meta, line, waiters, owners, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context, holder, nonce, announce = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local REMEMBERED_BYTES = 400

local lock = open_lock(meta, context)
if lock.held and lock.holder == holder then
  local released = nonce .. ' ' .. string.sub(redis.call('HGET', meta, 'released') or '', 1, REMEMBERED_BYTES)
  close_thing(lock, 'holder', '', 'free', text_of(lock.now), 'recalled', '', 'released', released)
  call_head(lock, line, events, announce)
  return 1
end
if nonce ~= '' then
  if string.find(' ' .. (redis.call('HGET', meta, 'released') or ''), ' ' .. nonce .. ' ', 1, true) then
    return 1
  end
  return redis.error_reply('NOT_HOLDER The lease of this holder has ended, or it never held this lock.')
end

local first = redis.call('ZRANGE', line, 0, 0)[1]
if leave_line(line, waiters, owners, holder) == 0 then
  return 0
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
return 2
