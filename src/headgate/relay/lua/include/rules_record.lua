--- The limits of a policy, written as `kind count ms burst;` for each. Kinds: w (window), b (bucket), c (concurrent).
---
--- `outgoing` are windows of limits that were replaced, written as `count ms until;` for each.
--@include text_of
local function read_rules(text)
  local rules = { text = text or '' }
  for kind, count, ms, burst in string.gmatch(text or '', '(%a) (%d+) (%d+) (%d+);') do
    rules[#rules + 1] = { kind = kind, count = tonumber(count), ms = tonumber(ms), burst = tonumber(burst) }
  end
  return rules
end

local function pack_outgoing(count, ms, until_ms)
  return table.concat({ text_of(count), text_of(ms), text_of(until_ms) }, ' ') .. ';'
end

--- Add the outgoing windows that have not ended yet to rules.
local function add_outgoing(rules, outgoing, now)
  for count, ms, until_ms in string.gmatch(outgoing or '', '(%d+) (%d+) (%d+);') do
    if tonumber(until_ms) > now then
      rules[#rules + 1] = {
        kind = 'w', count = tonumber(count), ms = tonumber(ms), burst = 0, until_ms = tonumber(until_ms),
      }
    end
  end
  return rules
end
