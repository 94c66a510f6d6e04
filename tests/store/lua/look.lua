#!lua flags=no-writes
--- Tell what a thing's clock knows and change nothing.
--- KEYS     1 meta (hash)
--- ARGV     1 context   2 lease_ms
--- RETURNS  0, state, epoch, now, 1 if it is holding
--@include clock
local meta = KEYS[1]
local context, lease_ms = ARGV[1], tonumber(ARGV[2])

local thing = open_thing(meta, context, lease_ms)
return { '0', thing.state, thing.epoch, text_of(thing.now), thing.holding and 1 or 0 }
