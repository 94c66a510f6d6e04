--- Answers a user's request: finds the user, puts back a lost place or a kept seat, and packs the state.
--@include tickets
--@include placement
--@include answer_record
--@include note_served
local LOST_MS = 3600000

--- Read what a caller can show: nothing, or `p` (proven) and further letters: a (an account), c (called, and not known
--- to have entered), e (enters: a full store takes entries of users it knows as requests for their status). The place,
--- the generation and the nickname of a place token may follow.
local function read_claim(claim)
  if claim == '' then
    return false, 0
  elseif claim == 'p' then
    return true, 0
  end
  local account, called, enters, place, generation, nickname =
    string.match(claim, '^p(a?)(c?)(e?) ?(%d*) ?(%d*) ?(.*)$')
  local token = place ~= '' and {
    place = tonumber(place), generation = tonumber(generation), nickname = nickname, called = called == 'c',
  }
  return true, account == 'a' and 1 or 0, token, enters == 'e'
end

--- Take over the caller's memory: the epoch it knows, the last place called in it, and the last one called before it.
local function note_remembered(queue, remembered)
  local epoch, serving, served = string.match(remembered, '^(%d+) (%d+) (%d+)$')
  note_served(queue, math.max(tonumber(served), epoch ~= queue.epoch and tonumber(serving) or 0))
end

--- Read the records of all users of a batch in one call, by id; `changed` collects those to write, in one call too.
local function read_records(queue, ids)
  local records, found = { changed = {} }, redis.call('HMGET', queue.keys.users, unpack(ids))
  for i, id in ipairs(ids) do
    records[id] = found[i]
  end
  return records
end

local function change_record(records, id, record)
  records[id] = record
  records.changed[#records.changed + 1] = id
  records.changed[#records.changed + 1] = record
end

local function write_records(queue, records)
  if #records.changed > 0 then
    redis.call('HSET', queue.keys.users, unpack(records.changed))
  end
end

local function recently_lost(queue)
  return queue.lost > 0 and queue.now - queue.lost < LOST_MS
end

--- Give the refusal for a place that is gone: by a reset, or by a loss of data.
local function place_gone(queue)
  if tonumber(redis.call('HGET', queue.keys.meta, 'reset_at') or -1) == queue.lost then
    return { err = 'QUEUE_RESET' }
  end
  return { err = 'QUEUE_RESET The store may have lost your place. Show your place token, or enter again.' }
end

local function new_user(id, nickname, account, place)
  return {
    id = id, state = 'W', account = account, place = place, shown = 0, seen = 0, eta = 0,
    ticket = '', server = '', session = '', nickname = nickname,
  }
end

--- Put back a user whose place the store may have lost, as a signed place token proves. Gives the user, or a refusal.
local function restore(queue, id, nickname, account, token)
  local place = token.place
  if token.generation > queue.generation then
    queue.generation = token.generation
  elseif token.generation < queue.generation then
    return nil, { err = 'QUEUE_RESET' }
  end
  if place >= tonumber(queue.epoch) then
    return nil, nil
  end
  if place <= queue.served and not token.called then
    local recalled = redis.call('HGET', queue.keys.meta, 'recalled') or ''
    if not string.find(recalled, ' ' .. id .. ' ', 1, true) then
      return nil, { err = 'QUEUE_RESET Your place was called before the data was lost; enter again.' }
    end
  end
  local user = new_user(id, nickname, account, place)
  return_to_line(queue, user)
  if place <= queue.serving then
    hint(queue.keys.events, 'changed +' .. id)
  end
  return user, nil
end

--- Give a dropped user the kept seat again, or one on another server up to the most it takes, or the head of the line.
local function come_back(queue, user, new_ticket)
  free_kept(queue, user)
  local server = user.server
  if not queue.fixed and server ~= '' then
    local lease = redis.call('ZSCORE', queue.keys.leases, server)
    local offered = lease and tonumber(lease) > queue.time and read_server(queue, server)
    if not offered or offered.draining then
      local other = picker(open_servers(queue, true), queue.packed)()
      server = other and other.id
    end
  end
  if server then
    give_ticket(queue, user, server, new_ticket())
  else
    return_to_line(queue, user)
  end
  hint(queue.keys.events, 'changed +' .. user.id)
end

--- Note that a known user asked, end a ticket that ran out, and replace one that became void. A ticket that its owner
--- has not seen yet cannot run out while its seat is held, because the owner is here now.
local function touch(queue, user, new_ticket)
  if user.state == 'P' then
    local deadline = tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or 0)
    if deadline <= queue.time and (ticket_seen(user) or deadline == 0) then
      expire_ticket(queue, user)
      hint(queue.keys.events, 'changed ' .. user.id)
    elseif unpack_ticket(redis.call('HGET', queue.keys.tickets, user.ticket)) ~= queue.epoch then
      free_hold(queue, user)
      give_ticket(queue, user, user.server, new_ticket())
    end
  elseif user.state == 'Y' then
    redis.call('ZREM', queue.keys.away, user.id)
    return_to_line(queue, user)
  end
end

--- Repeat a refusal for each user of a batch; the common part of the reply, which comes first, is empty.
local function refuse_askers(refusal, width)
  local replies = refuse_all(refusal, 4, #ARGV, width)
  table.insert(replies, 1, '')
  return replies
end

--- Limit a rank to the one shown before: a rank that was shown never rises.
local function shown_rank(rank, shown)
  return shown > 0 and rank > shown and shown or rank
end

--- Answer a user who waits, as nearly all do: the record is patched, not unpacked. Gives nil for any other user.
local function answer_waiting(queue, records, id, proven)
  local record = records[id]
  local state, account, place, shown, seen = struct.unpack(USER_HEAD, record)
  if state ~= 'W' or (account == 1 and not proven) then
    return nil
  end
  local rank = redis.call('ZRANK', queue.keys.waiting, id)
  if not rank then
    return nil
  end
  rank = shown_rank(rank + 1, shown)
  if rank ~= shown or seen ~= queue.seconds then
    change_record(records, id, string.sub(record, 1, SHOWN_AT - 1) .. struct.pack('<I4I4', rank, queue.seconds)
      .. string.sub(record, AFTER_SEEN))
  end
  return struct.pack(ANSWER_FORM, 'W', account, place, rank)
end

--- Answer a user in any state.
local function answer_user(queue, user)
  if user.state == 'W' then
    local rank = redis.call('ZRANK', queue.keys.waiting, user.id)
    if not rank then
      return_to_line(queue, user)
      rank = redis.call('ZRANK', queue.keys.waiting, user.id)
    end
    user.shown, user.seen = shown_rank(rank + 1, user.shown), queue.seconds
    write_user(queue.keys.users, user)
    return struct.pack(ANSWER_FORM, 'W', user.account, user.place, user.shown)
  end
  local answer = struct.pack(ANSWER_FORM, user.state, user.account, user.place, 0)
  if user.state ~= 'P' then
    return answer
  end
  local left = math.max(0, show_ticket(queue, user) - queue.time)
  local server = user.server ~= '' and read_server(queue, user.server)
  return answer .. pack_held(left, user.ticket, user.server, server and server.address or '')
end
