#!lua flags=allow-oom
--- Give each user's state, note that they asked, and put back users who were away or lost.
--- KEYS     group queue
--- ARGV     1 context   2 remembered (epoch, the last place called in it, the last one called before it)
---          3 seed (of new ticket ids)   4.. user, claim (see read_claim)
--- RETURNS  the common part, then an answer for each user, packed as include/answer_record.lua says
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST QUEUE_RESET NOT_IN_LINE FORBIDDEN
--- AGAIN    same answer: the same moment is noted again
--- LONG     a request may restore a place, a ticket or a seat, in the same atomic step
--@include answer_user
--@include queue_keys
local context, remembered, seed = ARGV[1], ARGV[2], ARGV[3]

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refuse_askers(refusal, 2)
end
local serving, generation = queue.serving, queue.generation
note_remembered(queue, remembered)
local new_ticket = ticket_source(queue, seed)
local ids, replies = {}, { '' }
for i = 4, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local records = read_records(queue, ids)

local function ask(id, claim)
  local proven, account, token, enters = read_claim(claim)
  local answer = records[id] and answer_waiting(queue, records, id, proven)
  if answer then
    return answer
  end
  local user = unpack_user(id, records[id])
  if user then
    if user.account == 1 and not proven then
      return { err = 'FORBIDDEN An account needs a service token or the place token.' }
    end
    touch(queue, user, new_ticket)
    if enters and user.state == 'K' then
      come_back(queue, user, new_ticket)
    end
    answer = answer_user(queue, user)
  elseif token then
    local restored, trouble = restore(queue, id, token.nickname, account, token)
    answer = trouble or restored and answer_user(queue, restored)
  end
  records[id] = redis.call('HGET', users, id)
  return answer or recently_lost(queue) and place_gone(queue) or { err = 'NOT_IN_LINE' }
end

for i = 4, #ARGV, 2 do
  replies[#replies + 1] = ask(ARGV[i], ARGV[i + 1])
end
write_records(queue, records)
-- If nothing changed, the clock is not written for a moment either: the next call starts from the same point.
if queue.as_saved ~= queue.thing.last or queue.served ~= queue.served_as_saved or queue.serving ~= serving
  or queue.generation ~= generation or next(queue.counts) then
  close_queue(queue)
end
replies[1] = pack_common(queue, calls_suspended(queue))
return replies
