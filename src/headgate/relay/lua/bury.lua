#!lua flags=allow-oom
--- Take the waiters of a process that has fallen silent out of one user's line, a page of the line at a time.
--- KEYS     1 meta (hash)   2 policy (hash)   3 relays (zset process -> ms)   4 turns (zset user -> number)
---          5 heads (hash user -> waiter)   6 users (zset user -> ms)   7 flying (zset unit -> lease)
---          8 answered (zset unit -> ms)   9 opened (zset unit -> lease)   10 state (hash)   11 events (channel)
---          12 line/<user> (zset waiter -> place)   13 patience/<user> (zset waiter -> ms)
---          14 fly/<user> (zset unit -> lease)   15 done/<user> (zset unit -> ms)   16 open/<user> (zset unit -> lease)
---          17 user/<user> (hash)   18 crowd (hash process user -> waiters)
--- ARGV     1 context   2 user   3 process   4 cursor (0: from the beginning)   5 lease_ms
--- RETURNS  the next cursor; 0: none of them is left, or the process is heard again
--- AGAIN    same answer: what is gone stays gone
--@include clock
--@include line
--@include turns
--@include call
local PAGE = 256
local keys = { meta = KEYS[1], policy = KEYS[2], relays = KEYS[3], turns = KEYS[4], heads = KEYS[5],
  users = KEYS[6], flying = KEYS[7], answered = KEYS[8], opened = KEYS[9], state = KEYS[10], events = KEYS[11],
  line = KEYS[12], patience = KEYS[13], fly = KEYS[14], done = KEYS[15], open = KEYS[16], user = KEYS[17],
  crowd = KEYS[18], owner = ARGV[2] }
local context, user, process, cursor, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten or alive(keys.relays, thing, process) then
  return '0'
end
local page = redis.call('ZSCAN', keys.line, cursor, 'MATCH', process .. '.*', 'COUNT', PAGE)
for i = 1, #page[2], 2 do
  drop_out(keys, page[2][i])
  keys.dropped = true
end
if keys.dropped then
  local own, shared = open_side(keys, policy, thing)
  tidy_pool(own, thing, lease_ms)
  if not shared.none then
    tidy_pool(shared, thing, lease_ms)
    if string.match(redis.call('HGET', keys.heads, user) or '', '^[^.]*') == process then
      take_turn(keys, user, true, nil)
    end
  end
  call_line(keys, own)
  call_turns(keys, shared, 0)
  note_user(keys, own, user)
end
close_thing(thing)
return page[1]
