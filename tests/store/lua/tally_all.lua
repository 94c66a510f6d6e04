#!lua
--- Count one more run of each id.
--- KEYS     1 runs (hash id -> count)
--- ARGV     1.. id
--- RETURNS  for each id: how often it has run
--- AGAIN    never: each run counts
local runs = KEYS[1]
local replies = {}
for i = 1, #ARGV do
  replies[i] = redis.call('HINCRBY', runs, ARGV[i], 1)
end
return replies
