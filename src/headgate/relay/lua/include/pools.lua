--- Opens the two pools of a user at an upstream: the user's own, and the one that all users share.
--@include upstream
--@include pool

local function open_pools(keys, policy, thing)
  local rules = add_outgoing(read_rules(policy.rules), policy.outgoing, thing.now)
  local together = add_outgoing(read_rules(policy.shared), policy.outgoing_shared, thing.now)
  local own = open_pool(rules, keys.fly, keys.done, keys.open, keys.user, thing.now, true)
  local shared = open_pool(together, keys.flying, keys.answered, keys.opened, keys.state, thing.now)
  own.version, shared.version = policy.version or '0', policy.version or '0'
  return own, shared
end

--- Schedule the next visit of a worker to this user: at the first lease's end, else when the last response is old.
local function schedule_user(keys, own, user)
  local at = redis.call('ZRANGE', keys.fly, 0, 0, 'WITHSCORES')[2]
  if not at then
    local last = redis.call('ZRANGE', keys.done, -1, -1, 'WITHSCORES')[2]
    at = last and tonumber(last) + own.keep or own.now + KEEP_MS
  end
  redis.call('ZADD', keys.users, text_of(tonumber(at)), user)
end
