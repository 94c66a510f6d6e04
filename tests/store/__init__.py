"""Tests of the store's door against real servers."""
