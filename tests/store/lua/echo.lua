#!lua
--- Give each item back; some words have a meaning of their own.
--- KEYS     1 calls (list: items in each call)   2 items (hash item -> count)
--- ARGV     1 greeting   2.. item
--- RETURNS  for each item: greeting, item
--- REFUSES  RATE_LIMITED for the item 'refuse', for it alone
--- AGAIN    same answer: it only gives back
local calls, items = KEYS[1], KEYS[2]
local greeting = ARGV[1]

redis.call('RPUSH', calls, #ARGV - 1)
local replies = {}
for i = 2, #ARGV do
  local item = ARGV[i]
  if item == 'break' then
    error('this item breaks the whole call')
  end
  redis.call('HINCRBY', items, item, 1)
  if item == 'refuse' then
    replies[#replies + 1] = { err = 'RATE_LIMITED not this one' }
  else
    replies[#replies + 1] = { greeting, item }
  end
end
return replies
