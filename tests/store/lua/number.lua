#!lua
--- Take the next number of a thing and tell what its clock knows.
--- KEYS     1 meta (hash)
--- ARGV     1 context   2 lease_ms
--- RETURNS  number, state, epoch, now, 1 if it is holding
--- AGAIN    never: each run takes a number
--@include clock
local meta = KEYS[1]
local context, lease_ms = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, lease_ms)
local number = next_number(thing)
close_thing(thing)
return { text_of(number), thing.state, thing.epoch, text_of(thing.now), thing.holding and 1 or 0 }
