-- Scripts run inside Valkey: its globals, and the functions that includes bring in.
std = "lua51"
read_globals = { "redis", "server", "cjson", "cmsgpack", "bit", "struct", "KEYS", "ARGV" }
max_line_length = 130  -- header contracts are tables
