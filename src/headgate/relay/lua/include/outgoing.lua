--- Keeps windows of limits that were replaced in force beside the new limits for one window: only they count the
--- requests that were sent under them together with those of now. A limit that was raised ends at once.
--@include rules_record
local MOST_OUTGOING = 8

--- Give the most units that limits let through in a time.
local function allowed_in(rules, ms)
  local most = math.huge
  for _, rule in ipairs(rules) do
    if rule.kind == 'w' then
      most = math.min(most, rule.count * math.ceil(ms / rule.ms))
    elseif rule.kind == 'b' then
      most = math.min(most, rule.burst + ms * rule.count / rule.ms)
    end
  end
  return most
end

--- Give the windows that end when `rules` become `new`; `before` are those that were outgoing already.
local function outgoing_rules(rules, before, new, now)
  local found, fresh = {}, read_rules(new)
  local function add(count, ms, ends)
    if #found < MOST_OUTGOING and ends > now and allowed_in(fresh, ms) <= count then
      found[#found + 1] = pack_outgoing(count, ms, ends)
    end
  end
  for _, rule in ipairs(read_rules(rules)) do
    if rule.kind == 'w' then
      add(rule.count, rule.ms, now + rule.ms)
    end
  end
  for _, rule in ipairs(add_outgoing({}, before, now)) do
    add(rule.count, rule.ms, rule.until_ms)
  end
  return table.concat(found)
end
