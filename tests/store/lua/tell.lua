#!lua
--- Give listeners a hint.
--- KEYS     1 events (stream)
--- ARGV     1 words
--- RETURNS  1
--- AGAIN    same answer: a hint more does no harm
--@include hint
local events = KEYS[1]
local words = ARGV[1]
hint(events, words)
return 1
