--- Frees the seat that a user holds with a ticket, or that is kept for one who was dropped.
--@include seat_record

local function free_hold(queue, user)
  redis.call('ZREM', queue.keys.holds, user.ticket)
  redis.call('ZREM', queue.keys.seats, seat(user.server, 'h', user.ticket))
end

local function free_kept(queue, user)
  redis.call('ZREM', queue.keys.kept, user.id)
  redis.call('ZREM', queue.keys.seats, seat(user.server, 'k', user.id))
end
