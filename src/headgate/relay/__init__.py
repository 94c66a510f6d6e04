"""Calls leave at a lawful pace: everything is accepted, nothing trips the upstream's limit."""
