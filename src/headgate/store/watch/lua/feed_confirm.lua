#!lua flags=allow-oom
--- Confirm that the store takes writes where a thing lives. Nothing is written, but a store that takes none refuses this.
--- KEYS     1 meta (hash)
--- ARGV     none
--- RETURNS  1 if the thing is there, else 0
--- AGAIN    same answer: nothing is changed
local meta = KEYS[1]

return redis.call('EXISTS', meta)
