"""Connections to Valkey: addresses, routing over standalone, Sentinel and Cluster, and pub/sub."""
