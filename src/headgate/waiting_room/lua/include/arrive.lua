--- Somebody asks: find them, bring them back where they belong, and say how they stand.
--@include placement

--- Put somebody back whose place the store may have lost; they prove it with a signed token. Gives the person, or a
--- refusal.
local function restore(queue, id, nickname, account, place, generation)
  if generation > queue.generation then
    queue.generation = generation
  elseif generation < queue.generation then
    return nil, { err = 'QUEUE_RESET' }
  end
  if place >= tonumber(queue.epoch) then
    return nil, nil
  end
  if place <= queue.serving then
    return nil, { err = 'QUEUE_RESET Your place was called before the data was lost; enter again.' }
  end
  local user = new_user(id, nickname, account, place)
  stand_in_line(queue, user)
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
end

--- Note that a known person asked; a ticket that ran out or became void is dealt with here and now.
local function touch(queue, user, new_ticket)
  if user.state == 'P' then
    local deadline = tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or 0)
    if deadline <= queue.time then
      expire_ticket(queue, user)
    elseif not string.find(redis.call('HGET', queue.keys.tickets, user.ticket) or '', queue.epoch .. ':', 1, true) then
      free_hold(queue, user)
      give_ticket(queue, user, user.server, new_ticket())
    end
  elseif user.state == 'Y' then
    redis.call('ZREM', queue.keys.away, user.id)
    stand_in_line(queue, user)
  end
end

--- What the person is told. A rank that was shown never rises.
local function view(queue, user, known_rank)
  local rank, left, address = 0, 0, ''
  if user.state == 'W' then
    rank = known_rank or redis.call('ZRANK', queue.keys.waiting, user.id)
    if not rank then
      stand_in_line(queue, user)
      rank = redis.call('ZRANK', queue.keys.waiting, user.id)
    end
    rank = rank + 1
    if user.shown > 0 and rank > user.shown then
      rank = user.shown
    end
    if user.unwritten or user.shown ~= rank or user.seen ~= queue.seconds then
      user.shown, user.seen = rank, queue.seconds
      write_user(queue.keys.users, user)
    end
  elseif user.state == 'P' then
    left = math.max(0, tonumber(redis.call('ZSCORE', queue.keys.holds, user.ticket) or 0) - queue.time)
    local server = user.server ~= '' and read_server(queue, user.server)
    address = server and server.address or ''
  end
  local rate, seen = flow(queue)
  return {
    user.state, user.place, rank, user.ticket, user.server, address, left, user.account, queue.generation,
    math.floor(rate * 1000000), math.floor(seen), queue.unattended and 1 or 0, queue.grace_ms, queue.serving,
  }
end
