--- A token's record in `tokens`: `name role namespace hash created_ms creator`, as `gateway/tokens.py` reads it; and a
--- revocation in `revoked`: `id name`.
--@include text_of
local function pack_token(name, role, namespace, hash, created_ms, creator)
  return table.concat({ name, role, namespace, hash, text_of(created_ms), creator }, ' ')
end

local function token_name(record)
  return string.match(record, '^%S+')
end

local function pack_revocation(id, name)
  return id .. ' ' .. name
end

--- Gives id and name.
local function unpack_revocation(member)
  return string.match(member, '^(%S+) (%S+)$')
end
