"""Tests that break what the product stands on while it works."""
