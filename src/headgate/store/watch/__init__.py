"""Streams of changes that have revisions and can be resumed; the registry and config use them."""
