#!lua flags=allow-oom
--- Remove a server: with drain it only takes no new users; without, its lease ends and the next tick clears it.
--- KEYS     group queue
--- ARGV     1 context   2 server   3 drain
--- RETURNS  1 if it was known, else 0
--- REFUSES  QUEUE_UNKNOWN QUEUE_LOST
--- AGAIN    same answer: a server that left stays gone
--@include queue
--@include server_record
--@include queue_keys
local context, id, drain = ARGV[1], ARGV[2], ARGV[3] == '1'

local queue = open_queue(keys, context)
local refusal = missing_queue(queue)
if refusal then
  return refusal
end
local server = read_server(queue, id)
if not server then
  return 0
end
server.draining = true
write_server(queue, server)
if not drain then
  redis.call('ZADD', leases, 0, id)
end
count(queue, drain and 'servers_drained' or 'servers_removed', 1)
close_queue(queue)
return 1
