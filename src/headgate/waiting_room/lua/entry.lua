#!lua
--- Take one place at the tail of a queue for each user; a user already in line keeps the first place.
--- KEYS     group queue
--- ARGV     1 context   2 remembered (epoch, the last place called in it, the last one called before it)
---          3 seed (of new ticket ids)   4.. user, nickname, claim (see read_claim), trace
--- RETURNS  the common part, then an answer for each user, packed as include/answer_record.lua says
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_CLOSED QUEUE_FULL QUEUE_RESET FORBIDDEN
--- AGAIN    same answer: a user in line keeps the place
--- LONG     a request may restore a place, a ticket or a seat, in the same atomic step
--@include answer_user
--@include expected_wait
--@include forget_user
--@include queue_keys
local context, remembered, seed = ARGV[1], ARGV[2], ARGV[3]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_askers(refusal, 4)
end
note_remembered(queue, remembered)
local new_ticket = ticket_source(queue, seed)
local ids, places, joining, replies = {}, {}, {}, { '' }
for i = 4, #ARGV, 4 do
  ids[#ids + 1] = ARGV[i]
end
local records = read_records(queue, ids)

--- Add the newcomers to the line in one call, because they all stand behind the others.
local function join()
  if #places > 0 then
    redis.call('ZADD', waiting, unpack(places))
    places, joining = {}, {}
  end
end

local function newcomer(id, nickname, account)
  if queue.draining then
    return { err = 'QUEUE_CLOSED' }
  end
  queue.length = queue.length or redis.call('ZCARD', waiting)
  if queue.longest and queue.length + redis.call('ZCARD', away) >= queue.longest then
    return { err = 'QUEUE_FULL' }
  end
  queue.length = queue.length + 1
  local user = new_user(id, nickname, account, next_number(queue.thing))
  user.shown, user.seen = queue.length, queue.seconds
  user.eta = math.min(4294967295, math.floor(expected_wait(queue, queue.length) + 0.5))
  places[#places + 1] = text_of(user.place)
  places[#places + 1] = id
  joining[id] = true
  change_record(records, id, pack_user(user))
  count(queue, 'entered', 1)
  return struct.pack(ANSWER_FORM, 'W', account, user.place, user.shown)
end

local function arrive(id, nickname, claim)
  local proven, account, token = read_claim(claim)
  if joining[id] then
    join()
  end
  local answer = records[id] and answer_waiting(queue, records, id, proven)
  if answer then
    return answer
  end
  local user, trouble = unpack_user(id, records[id]), nil
  if user and user.account == 1 and not proven then
    return { err = 'FORBIDDEN An account needs a service token, the proof of its site, or the place token.' }
  end
  if user then
    touch(queue, user, new_ticket)
    if user.state == 'K' then
      come_back(queue, user, new_ticket)
    end
  elseif not proven then
    return recently_lost(queue) and place_gone(queue)
      or { err = 'FORBIDDEN A userId needs a service token, the proof of its site, or the place token.' }
  elseif token then
    user, trouble = restore(queue, id, nickname, account, token)
  end
  if trouble then
    return trouble
  elseif user and not string.find('EFLB', user.state, 1, true) then
    answer = answer_user(queue, user)
    records[id] = redis.call('HGET', users, id)
    return answer
  elseif user then
    forget_user(queue, id)
  end
  return newcomer(id, nickname, math.max(account, user and user.account or 0))
end

for i = 4, #ARGV, 4 do
  local id, trace = ARGV[i], ARGV[i + 3]
  local answer = arrive(id, ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = answer
  if trace ~= '' and not answer.err then
    redis.call('HSET', traces, id, trace)
  end
end
join()
write_records(queue, records)
close_queue(queue)
replies[1] = pack_common(queue, calls_suspended(queue))
return replies
