--- An upstream as scripts see it: its policy, its clock, and which relay processes are alive.
---
--- A process sends a heartbeat every second. One without a heartbeat for SILENT_MS counts as dead. If no process at all
--- sent one for GAP_MS, it was the store that was away, and every process has SILENT_MS anew; so SILENT_MS must be
--- longer than GAP_MS and the time between two heartbeats together.
--@include clock
--@include hint
--@include waiter_record
local SILENT_MS = 4000
local GAP_MS = 2500
local LOST_MS = 1500
--- The name under which runners of jobs send their heartbeat, beside that of their process.
local RUNNERS = 'jobs'

--- Read the part of a policy that scripts need; `user` may be nil. Without a version there is no policy.
local function read_policy(policy, user)
  local found = redis.call('HMGET', policy, 'version', 'gone', 'hold', 'rules', 'shared', 'plan:' .. (user or ''),
    'outgoing', 'outgoing_shared')
  local rules, outgoing = found[4], found[7]
  if user and found[6] then
    local plan = redis.call('HMGET', policy, 'rules:' .. found[6], 'outgoing:' .. found[6])
    rules, outgoing = plan[1] or rules, plan[1] and plan[2] or outgoing
  end
  return { version = found[1], gone = found[2], hold = tonumber(found[3] or 0), rules = rules, shared = found[5],
    outgoing = outgoing, outgoing_shared = found[8] }
end

--- Open an upstream's clock. History that may be lost counts as a full window, and the hold is long enough for every
--- process to report its permits again. Every script that writes meta opens it here, because the first that notices a
--- loss sets the hold. `forgotten`: the upstream was taken out of service, and all its keys are gone.
local function open_upstream(meta, policy, context)
  local saved = redis.call('HMGET', meta, 'replid', 'raw', 'offset', 'last', 'epoch', 'hold', 'step', 'was', 'revived')
  local thing = open_thing(meta, context, math.max(policy.hold, LOST_MS), saved)
  thing.revived, thing.forgotten = tonumber(saved[9] or 0), policy.gone and thing.state == 'new'
  if thing.forgotten then
    return thing -- nothing may be written any more, because nothing would remove it
  end
  if thing.held_anew then
    redis.call('HSET', meta, 'lost_at', text_of(thing.now))
  end
  local seen = tonumber(saved[2] or 0) + tonumber(saved[3] or 0)
  if thing.now - seen > GAP_MS then
    thing.revived = thing.now
    redis.call('HSET', meta, 'revived', text_of(thing.now))
  end
  return thing
end

--- Tell whether the process of a waiter is alive.
local function alive(relays, thing, waiter)
  local beat = redis.call('ZSCORE', relays, process_of(waiter))
  return beat and thing.now - math.max(tonumber(beat), thing.revived) < SILENT_MS
end
