--- Write the time of a visit that changed nothing if TIME was put back: otherwise the time since then would not count.
--@include clock
local function keep_time(thing)
  if thing.offset > tonumber(thing.saved[3] or 0) then
    close_thing(thing)
  end
end
