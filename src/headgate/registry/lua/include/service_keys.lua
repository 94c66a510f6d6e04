--- The keys of a service, for scripts whose header says `group service`: as locals, and all but meta in `service`.
--- KEYS     1 meta (hash)   2 records (hash id -> json)   3 metadata (hash id -> json)   4 metrics (hash id -> json)
---          5 states (hash id -> state_record.lua)   6 deadlines (zset id -> ms)   7 overrides (hash id -> override_record.lua)
---          8 memory (zset id -> ms, overrides of removed instances)   9 checks (hash id -> json)
---          10 trials (hash id -> words)   11 due (zset id -> ms, checks)   12 changes (stream)
---          13 extended (zset id -> ms, deadlines before an outage)
local meta, records, metadata, metrics, states, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local overrides, memory, checks, trials, due, changes = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local extended = KEYS[13]
local service = {
  records = records, metadata = metadata, metrics = metrics, states = states, deadlines = deadlines,
  overrides = overrides, memory = memory, checks = checks, trials = trials, due = due, changes = changes,
  extended = extended,
}
