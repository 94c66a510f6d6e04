#!lua flags=allow-oom
--- Record in a type's journal the new revisions of its groups: watchers of the type read them in this order.
--- KEYS     1 meta (hash)   2 heads (hash group -> revision)   3 changes (stream)
--- ARGV     1 context   2 history   3 keep_ms   4.. group, revision (0: the group is gone)
--- RETURNS  the journal's revision, how many groups are further than they were said to be
--- AGAIN    same answer: a revision is noted once
--@include clock
--@include feed
local meta, heads, changes = KEYS[1], KEYS[2], KEYS[3]
local context, history, keep_ms = ARGV[1], ARGV[2], ARGV[3]

local thing = open_thing(meta, context)
local further = 0
for i = 4, #ARGV, 2 do
  local group, revision = ARGV[i], tonumber(ARGV[i + 1])
  local head = tonumber(redis.call('HGET', heads, group) or 0)
  if revision == 0 then
    redis.call('HDEL', heads, group)
  elseif revision > head then
    redis.call('HSET', heads, group, text_of(revision))
    change(thing, changes, history, 'moved', group, text_of(head) .. ' ' .. text_of(revision))
  elseif revision < head then
    further = further + 1
  end
end
if thing.state == 'new' and not thing.changed then
  return {'0', further}
end
close_feed(thing, changes)
-- A journal without readers expires; a reader that comes back to it lists again.
for _, key in ipairs({changes, heads, meta}) do
  redis.call('PEXPIRE', key, keep_ms)
end
return {text_of(revision_of(thing)), further}
