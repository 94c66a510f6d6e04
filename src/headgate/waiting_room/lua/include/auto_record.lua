--- A resource's record in `auto`, for which the queue was switched on: `since:above`, both in ms. `above` is the last
--- time at which its traffic was over the threshold.
--@include text_of
local function unpack_auto(text)
  return string.match(text or '', '^(%d+):(%d+)$')
end

local function pack_auto(since, now)
  return since .. ':' .. text_of(now)
end
