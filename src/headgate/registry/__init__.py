"""Servers find each other: registration, discovery, watching, expiry and health, on one slot per service."""
