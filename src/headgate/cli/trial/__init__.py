"""What demonstrates or proves: `up`, the demo shop, the load generator and the strict upstream."""
