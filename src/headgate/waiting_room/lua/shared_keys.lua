#!lua flags=allow-oom
--- Give the signing keys that all gateways share; the first caller stores its own.
--- KEYS     1 keys (string)
--- ARGV     1 keys (a JWKS, if there is none yet)
--- RETURNS  the keys
--- AGAIN    same answer: the first keys stay
local keys = KEYS[1]
local offered = ARGV[1]

redis.call('SET', keys, offered, 'NX')
return redis.call('GET', keys)
