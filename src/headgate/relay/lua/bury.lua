#!lua flags=allow-oom
--- Take the waiters of a dead process out of one user's line, a page of the line at a time.
--- KEYS     group user   18 crowd (hash process user -> waiters)
--- ARGV     1 context   2 user   3 process   4 cursor (0: from the beginning)   5 lease_ms
--- RETURNS  the next cursor; 0: none of them is left, or the process is alive again
--- AGAIN    same answer: a second run finds nothing more
--@include pools
--@include line
--@include turns
--@include call
local PAGE = 256
--@include user_keys
keys.crowd, keys.owner = KEYS[18], ARGV[2]
local context, user, process, cursor, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local policy = read_policy(keys.policy, user)
local thing = open_upstream(keys.meta, policy, context)
if thing.forgotten or alive(keys.relays, thing, process) then
  return '0'
end
local page = redis.call('ZSCAN', keys.line, cursor, 'MATCH', process .. '.*', 'COUNT', PAGE)
for i = 1, #page[2], 2 do
  leave_line(keys, page[2][i])
  keys.dropped = true
end
if keys.dropped then
  local own, shared = open_pools(keys, policy, thing)
  tidy_pool(own, thing, lease_ms)
  if not shared.none then
    tidy_pool(shared, thing, lease_ms)
    if process_of(redis.call('HGET', keys.heads, user) or '') == process then
      take_turn(keys, user, true, nil)
    end
  end
  notify_line(keys, own)
  notify_turns(keys, shared, 0)
  schedule_user(keys, own, user)
end
close_thing(thing)
return page[1]
