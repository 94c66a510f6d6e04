--- The keys of a namespace, for scripts whose header says `group namespace`; all are in `keys`.
--- KEYS     1 meta (hash)   2 values (hash key -> json)   3 versions (hash key -> version_record.lua)
---          4 past (hash key@version -> json)   5 changes (stream)   6 deleted (zset key -> ms)
local keys = {meta = KEYS[1], values = KEYS[2], versions = KEYS[3], past = KEYS[4], changes = KEYS[5], deleted = KEYS[6]}
