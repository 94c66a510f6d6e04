#!lua
--- Refuse, in the words that are given.
--- KEYS     1 line/<user> (list)
--- ARGV     1 words
--- RETURNS  nothing
--- REFUSES  whatever the caller says
--- AGAIN    same answer: it refuses again
local line = KEYS[1]
local words = ARGV[1]
if redis.call('EXISTS', line) == 0 then
  return redis.error_reply(words)
end
return line
