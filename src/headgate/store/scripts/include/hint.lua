--- Notify listeners of a change. The channel is a key's name. Hints may be lost, so a refusal is ignored.
local function hint(channel, words)
  redis.pcall('PUBLISH', channel, words)
end
