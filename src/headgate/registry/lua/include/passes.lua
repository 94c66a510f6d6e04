--- Filters, as registry/filters.py has them: a number is compared as a number, text and truth by their words; != holds
--- where == does not, also for a missing field; order compares numbers only; null is missing.
local function equals(value, words, number)
  if type(value) == 'number' then
    return number ~= '' and value == tonumber(number)
  elseif type(value) == 'boolean' then
    return tostring(value) == words
  end
  return type(value) == 'string' and value == words
end

local function passes(value, operator, words, number)
  if value == cjson.null then
    value = nil
  end
  if operator == '==' then
    return equals(value, words, number)
  elseif operator == '!=' then
    return not equals(value, words, number)
  elseif operator == 'exists' then
    return value ~= nil
  elseif operator == 'in' then
    for _, choice in ipairs(cjson.decode(words)) do
      if equals(value, choice[1], choice[2]) then
        return true
      end
    end
    return false
  elseif type(value) ~= 'number' or number == '' then
    return false
  end
  local limit = tonumber(number)
  return (operator == '>' and value > limit) or (operator == '>=' and value >= limit)
    or (operator == '<' and value < limit) or (operator == '<=' and value <= limit)
end

local function by_id(flat)
  local found = {}
  for i = 1, #flat, 2 do
    found[flat[i]] = flat[i + 1]
  end
  return found
end

--- Make the record's own fields as others see them: under the override, with health.
local function own_fields(record, state, override, ended, kept)
  local fields = cjson.decode(record)
  if override.enabled ~= '-' then
    fields.enabled = override.enabled == '1'
  end
  if override.weight ~= '-' then
    fields.weight = tonumber(override.weight)
  end
  fields.draining = override.drain == '1'
  fields.suspect = ended and kept or false
  fields.healthy = state.reported == '1' and state.checked == '1' and state.lapsed == '0' and (not ended or kept)
  return fields
end

local function passing(lists, now, kept, healthy, filters, first)
  local tables, chosen = {}, {}
  for i, list in ipairs(lists) do
    tables[i], chosen[i] = by_id(list), {}
  end
  local deadlines, extended, metrics, records, metadata, states, overrides = unpack(tables)
  for id, words in pairs(states) do
    local state, deadline = read_state(words), deadlines[id]
    local alive = kept or tonumber(deadline or 0) > now
    local ended = deadline and tonumber(extended[id] or deadline) <= now
    local own = own_fields(records[id], state, read_override(overrides[id]), ended, alive)
    local parts = {own = own}
    local pass = alive or state.ephemeral == '0'
    if healthy ~= '' then
      pass = pass and (own.healthy and own.enabled and not own.draining) == (healthy == '1')
    end
    for i = first, #filters, 5 do
      local part, key = filters[i], filters[i + 1]
      if pass and not parts[part] then
        parts[part] = part == 'systemInfo' and own.systemInfo
          or cjson.decode((part == 'metadata' and metadata or metrics)[id] or '{}')
      end
      pass = pass and passes(parts[part][key], filters[i + 2], filters[i + 3], filters[i + 4])
    end
    if pass then
      for i, values in ipairs(tables) do
        if values[id] then
          chosen[i][#chosen[i] + 1] = id
          chosen[i][#chosen[i] + 1] = values[id]
        end
      end
    end
  end
  return chosen
end
