--- Instances that died lately, so that operators are notified when they are back.
local LOST_MS, MOST_LOST = 86400000, 100

local function note_lost(thing, lost, id)
  redis.call('ZADD', lost, text_of(thing.now), id)
  redis.call('ZREMRANGEBYRANK', lost, 0, -MOST_LOST - 1)
end

--- Give the instances that are back, once each.
local function returned(thing, lost, states)
  local back = {}
  redis.call('ZREMRANGEBYSCORE', lost, '-inf', text_of(thing.now - LOST_MS))
  for _, id in ipairs(redis.call('ZRANGE', lost, 0, -1)) do
    local state = read_state(redis.call('HGET', states, id))
    if state and state.lapsed == '0' then
      redis.call('ZREM', lost, id)
      back[#back + 1] = id
    end
  end
  return back
end
