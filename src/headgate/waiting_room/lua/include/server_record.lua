--- A server's record in `servers`: `capacity most draining seq epoch/confirmed address`. `seq` is the number of its
--- latest redeem, `epoch` that of its last report of sessions (0: none), and all its sessions up to `confirmed` were in
--- a report. `reported` is true if the report was in the current epoch, so that its sessions are known.
--@include text_of
local function unpack_server(queue, id, text)
  if not text then
    return nil
  end
  local capacity, most, draining, seq, epoch, confirmed, address =
    string.match(text, '^(%d+) (%d+) (%d) (%d+) (%d+)/?(%d*) (.*)$')
  return {
    id = id, capacity = tonumber(capacity), most = tonumber(most), draining = draining == '1', seq = tonumber(seq),
    reported = epoch == queue.epoch, epoch = epoch, confirmed = tonumber(confirmed) or 0, address = address,
  }
end

local function read_server(queue, id)
  return unpack_server(queue, id, redis.call('HGET', queue.keys.servers, id))
end

local function write_server(queue, server)
  redis.call('HSET', queue.keys.servers, server.id, text_of(server.capacity) .. ' ' .. text_of(server.most) .. ' '
    .. (server.draining and 1 or 0) .. ' ' .. text_of(server.seq) .. ' ' .. server.epoch .. '/'
    .. text_of(server.confirmed) .. ' ' .. server.address)
end
