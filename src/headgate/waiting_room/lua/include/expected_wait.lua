--- Predicts a newcomer's waiting time.
--@include queue
--@include forecast_record

--- Give the seconds that a user at this rank will wait, or 0 if they are not known; the end of a pause is not.
local function expected_wait(queue, rank)
  if calls_suspended(queue) then
    return 0
  end
  local free, turnover, _, _, pace, _, _, first, slowing = struct.unpack(FORECAST_FORM, forecast(queue))
  local filling = math.min(rank, free)
  local behind = rank - filling
  if (filling > 0 and pace <= 0) or (behind > 0 and turnover <= 0) then
    return 0
  end
  local seconds = filling > 0 and filling / pace or 0
  if behind > 0 then
    local quick = math.max(0, first - turnover) * slowing
    if behind < quick then
      return seconds - slowing * math.log(1 - behind / (first * slowing))
    end
    seconds = seconds + (behind - quick) / turnover + (quick > 0 and slowing * math.log(first / turnover) or 0)
  end
  return seconds
end
