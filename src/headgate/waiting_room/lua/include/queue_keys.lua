--- The keys of a queue, for scripts whose header says `group queue`: a local for each, and all of them in `keys`.
--- KEYS     1 meta (hash)   2 policy (hash)   3 waiting (zset user -> place)   4 users (hash)   5 tickets (hash)
---          6 holds (zset ticket -> deadline)   7 seats (zset server:kind:id)   8 kept (zset user -> deadline)
---          9 away (zset user -> deadline)   10 finished (zset user -> ms)   11 sessions (hash)   12 servers (hash)
---          13 leases (zset server -> deadline)   14 stays (zset session -> deadline)   15 events (stream)
---          16 traces (hash)
local meta, policy, waiting, users, tickets, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local seats, kept, away, finished, sessions, servers = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local leases, stays, events, traces = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local keys = {
  meta = meta, policy = policy, waiting = waiting, users = users, tickets = tickets, holds = holds, seats = seats,
  kept = kept, away = away, finished = finished, sessions = sessions, servers = servers, leases = leases, stays = stays,
  events = events, traces = traces,
}
