#!lua
--- Count one more run.
--- KEYS     1 runs (hash id -> count)
--- ARGV     1 id
--- RETURNS  how often this id has run
--- AGAIN    never: each run counts
local runs = KEYS[1]
local id = ARGV[1]
return redis.call('HINCRBY', runs, id, 1)
