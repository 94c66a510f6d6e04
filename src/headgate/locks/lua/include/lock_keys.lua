--- The keys of a lock, for scripts whose header says `group lock`.
--- KEYS     1 meta (hash)   2 line (zset holder -> place)   3 waiters (hash holder -> waiter_record.lua)
---          4 owners (hash owner -> waiters)   5 events (stream)
local meta, line, waiters, owners, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
