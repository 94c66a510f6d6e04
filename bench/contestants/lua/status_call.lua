#!lua flags=no-writes
--- Tell the rank and the ticket of each user.
--- KEYS     1 waiting (zset user -> place)   2 tickets (hash user -> ticket)
--- ARGV     1.. user
--- RETURNS  for each user: rank from 0 or nil, ticket or nil
local waiting, tickets = KEYS[1], KEYS[2]
local replies = {}
for number, user in ipairs(ARGV) do
  replies[number] = { redis.call('ZRANK', waiting, user), redis.call('HGET', tickets, user) }
end
return replies
