"""Benchmarks side by side with peers; see docs/benchmarks.md."""
