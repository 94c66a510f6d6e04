#!lua flags=allow-oom
--- Take this node's vote back from a holder and notify waiters.
--- KEYS     1 meta (hash)   2 events (stream)
--- ARGV     1 context   2 holder
--- RETURNS  1 if the holder had the vote, else 0
--- AGAIN    same answer: a vote that was given back stays so
--@include clock
--@include lease
--@include hint
local meta, events = KEYS[1], KEYS[2]
local context, holder = ARGV[1], ARGV[2]

local lock = open_lock(meta, context)
if lock.holder ~= holder then
  return 0
end
close_thing(lock, 'holder', '', 'free', text_of(lock.now))
hint(events, 'free')
return 1
