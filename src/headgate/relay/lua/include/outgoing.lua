--- Windows of limits that were replaced stay in force beside the new limits until they have forgotten what was sent under
--- them: nobody else would count it together with what is sent now. A limit that was raised goes at once. Written as
--- `count ms until;`, each with the time at which it ends.
--@include text_of
--@include pool
local MOST_OUTGOING = 8

--- The most that limits let through in so many ms.
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

--- Give the windows that end when `rules` become `new`; `before` are those that were ending already.
local function outgoing_rules(rules, before, new, now)
  local found, fresh = {}, read_rules(new)
  local function add(count, ms, ends)
    if #found < MOST_OUTGOING and ends > now and allowed_in(fresh, ms) <= count then
      found[#found + 1] = table.concat({ text_of(count), text_of(ms), text_of(ends) }, ' ') .. ';'
    end
  end
  for _, rule in ipairs(read_rules(rules)) do
    if rule.kind == 'w' then
      add(rule.count, rule.ms, now + rule.ms)
    end
  end
  for count, ms, ends in string.gmatch(before or '', '(%d+) (%d+) (%d+);') do
    add(tonumber(count), tonumber(ms), tonumber(ends))
  end
  return table.concat(found)
end
