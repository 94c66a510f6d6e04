--- Raise the last place that was called before data was lost: a user with a place up to it is not put back, unless they
--- are known not to have entered. Calls since then are no such limit, because users in front may come back later.
local function note_served(queue, served)
  queue.served = math.max(queue.served, served)
  queue.serving = math.max(queue.serving, served)
end
