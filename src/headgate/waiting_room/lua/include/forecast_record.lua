--- The forecast of a queue, as promotion writes it to meta and status sends it to the caller.
---
--- Fields: free (seats that users in front get), turnover (users a second who come in after those, in the long run),
--- departures (from which that is known), seconds that a seat is taken, pace (users a second that the policy lets in at
--- most), fastest (a turnover that is hardly exceeded), seconds of a tick, first (turnover at first), slowing (seconds
--- in which it slows down, as late users hold seats), doubt (the share by which that may be wrong), seconds that late
--- users hold a seat.
local FORECAST_FORM = '<I4dddddddddd'

local function forecast(queue)
  -- Another version of Headgate may have written another form: then the forecast is unknown until the next step.
  if queue.forecast and #queue.forecast == struct.size(FORECAST_FORM) then
    return queue.forecast
  end
  return struct.pack(FORECAST_FORM, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
end
