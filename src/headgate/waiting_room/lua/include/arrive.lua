--- Somebody asks: find them, bring them back where they belong, and say how they stand.
--@include placement
local ANSWER_FORM, COMMON_FORM, HELD_FORM = '<c1BdI4', '<ddBddd', '<dBc0Bc0Hc0'

--- What an asker can show for themselves: nothing, or 'p' (proven) and further letters: a (an account), c (called, and not
--- known to have entered), e (enters: a full store takes entries of those it knows as questions for their status). Behind
--- them may stand the place, the generation and the nickname of a place token.
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

--- Take in which epoch the caller knows, the last place called in it, and the last one called before it.
local function hear_served(queue, remembered)
  local epoch, serving, served = string.match(remembered, '^(%d+) (%d+) (%d+)$')
  note_served(queue, math.max(tonumber(served), epoch ~= queue.epoch and tonumber(serving) or 0))
end

--- The records of those who ask together, by id, read in one call; `changed` is what will be written in one call.
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

--- Say that a place is gone, and truly why.
local function place_gone(queue)
  if tonumber(redis.call('HGET', queue.keys.meta, 'reset_at') or -1) == queue.lost then
    return { err = 'QUEUE_RESET' }
  end
  return { err = 'QUEUE_RESET The store may have lost your place. Show your place token, or enter again.' }
end

--- Put somebody back whose place the store may have lost; they prove it with a signed token. Gives the person, or a
--- refusal.
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
  stand_in_line(queue, user)
  if place <= queue.serving then
    hint(queue.keys.events, 'changed +' .. id)
  end
  return user, nil
end

--- Come back to a kept seat: the same one, or room up to the most that another server takes, or the head of the line.
local function come_back(queue, user, new_ticket)
  free_kept(queue, user)
  local server = user.server
  if not queue.fixed and server ~= '' then
    local offered = live(queue, server) and read_server(queue, server)
    if not offered or offered.draining then
      local other = picker(open_servers(queue, true), queue.packed)()
      server = other and other.id
    end
  end
  if server then
    give_ticket(queue, user, server, new_ticket())
  else
    stand_in_line(queue, user)
  end
  hint(queue.keys.events, 'changed +' .. user.id)
end

--- Note that a known person asked; a ticket that ran out or became void is dealt with here and now. One that was never
--- shown cannot run out while its seat is held: its owner is here.
local function touch(queue, user, new_ticket)
  if user.state == 'P' then
    local deadline = tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or 0)
    if deadline <= queue.time and (ticket_seen(user) or deadline == 0) then
      expire_ticket(queue, user)
      hint(queue.keys.events, 'changed ' .. user.id)
    elseif not string.find(redis.call('HGET', queue.keys.tickets, user.ticket) or '', queue.epoch .. ':', 1, true) then
      free_hold(queue, user)
      give_ticket(queue, user, user.server, new_ticket())
    end
  elseif user.state == 'Y' then
    redis.call('ZREM', queue.keys.away, user.id)
    stand_in_line(queue, user)
  end
end

--- Refuse whoever asks; what all are told alike comes first, and is nothing.
local function refuse_askers(refusal, width)
  local replies = refuse_all(refusal, 4, #ARGV, width)
  table.insert(replies, 1, '')
  return replies
end

--- What all are told alike, packed.
local function common(queue)
  local switches = (queue.unattended and 1 or 0) + (standing(queue) and 2 or 0)
  return struct.pack(COMMON_FORM, queue.generation, queue.flow_age / 1000, switches, queue.grace_ms, queue.serving,
    tonumber(queue.epoch)) .. forecast(queue)
end

--- A rank that was shown never rises.
local function shown_rank(rank, shown)
  return shown > 0 and rank > shown and shown or rank
end

--- Tell somebody who waits, as nearly all do: the record is patched, not taken apart. Gives nil for anybody else.
local function tell_waiting(queue, records, id, proven)
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

--- Tell somebody, whatever their state.
local function view(queue, user)
  if user.state == 'W' then
    local rank = redis.call('ZRANK', queue.keys.waiting, user.id)
    if not rank then
      stand_in_line(queue, user)
      rank = redis.call('ZRANK', queue.keys.waiting, user.id)
    end
    user.shown, user.seen = shown_rank(rank + 1, user.shown), queue.seconds
    write_user(queue.keys.users, user)
    return struct.pack(ANSWER_FORM, 'W', user.account, user.place, user.shown)
  end
  local told = struct.pack(ANSWER_FORM, user.state, user.account, user.place, 0)
  if user.state ~= 'P' then
    return told
  end
  if not ticket_seen(user) then
    show_ticket(queue, user)
  end
  local left = math.max(0, tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or 0) - queue.time)
  local server = user.server ~= '' and read_server(queue, user.server)
  local address = server and server.address or ''
  return told .. struct.pack(HELD_FORM, left, #user.ticket, user.ticket, #user.server, user.server, #address, address)
end
