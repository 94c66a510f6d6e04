"""Forwards calls to somebody else's API within its limits: permits, the proxy, and jobs."""
