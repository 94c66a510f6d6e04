#!lua flags=allow-oom
--- Give the signing keys that all gateways share; the first to ask brings them.
--- KEYS     1 keys (string)
--- ARGV     1 keys (a JWKS, if there is none yet)
--- RETURNS  the keys
--- AGAIN    same answer: the first keys stay
local keys = KEYS[1]
local brought = ARGV[1]

redis.call('SET', keys, brought, 'NX')
return redis.call('GET', keys)
