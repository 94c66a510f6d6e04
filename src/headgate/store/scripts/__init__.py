"""Lua scripts: loading, the contracts in their headers, and the includes that all features share."""
