"""Demonstrations and proofs: `up`, the demo shop, the load generator and `relay prove`."""
