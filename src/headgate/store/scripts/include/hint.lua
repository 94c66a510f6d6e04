--- Tell whoever listens that something changed; nobody may rely on it, so a refusal is ignored. The channel is a key's name.
local function hint(channel, words)
  redis.pcall('PUBLISH', channel, words)
end
