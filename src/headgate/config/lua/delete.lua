#!lua flags=allow-oom
--- Delete keys, all or none, as publish does; it frees memory, so a full store runs it.
--- KEYS     group namespace
--- ARGV     1 context   2 history   3 history_bytes   4 most_keys   5 kept (versions of a key)   6 kept_ms   7 nonce
---          8 namespace_bytes   9 common (json fields)   10.. key,
---          expected (empty: any, 0: must not exist, -1: must exist, else its version), kind (removed), fields (empty)
--- RETURNS  published, revision, then key, version of each; or conflict, key, its version
--- AGAIN    same answer: the nonce names the attempt
--@include publishing
--@include namespace_keys
local context, history, history_bytes, most_keys = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local kept, kept_ms, nonce, namespace_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local common, drafts = ARGV[9], ARGV

local limits = {history = history, history_bytes = history_bytes, most_keys = most_keys, kept = kept, kept_ms = kept_ms,
  namespace_bytes = namespace_bytes}
return publish(keys, context, limits, nonce, common, drafts)
