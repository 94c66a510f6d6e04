#!lua flags=allow-oom
--- Visit a service for a reader: after an outage, make a step of the pass that gives every instance one lease of its
--- own (about `most` instances); otherwise record that instances that are late now were seen dead.
--- KEYS     1 meta (hash)   2 states (hash id -> words)   3 deadlines (zset id -> ms)
---          4 extended (zset id -> ms, deadlines before an outage)   5 changes (stream)
--- ARGV     1 context   2 most   3 from   4 share
--- RETURNS  1, or 0 if there is more to do
--- AGAIN    same answer: a settled service stays settled
--@include service
--@include state_record
--@include mass_expiry
--@include grace_pass
local meta, states, deadlines, extended, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local context, most, from, share = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local thing = open_service(meta, context)
if thing.state == 'new' then
  return 1
end
local done = true
if not settled(thing) then
  done = settle(thing, {states = states, deadlines = deadlines, extended = extended}, most)
elseif not held(thing, deadlines, from, share) then
  redis.call('HSET', meta, 'hidden', text_of(thing.now))
end
close_service(thing, changes)
if thing.state == 'uncertain' then
  hint(changes, thing.epoch)
end
return done and 1 or 0
