--- A field of `crowd`, which counts a process's waiters in a user's line: `process user`.
local function crowd_field(process, user)
  return process .. ' ' .. user
end
