"""Headgate: traffic control for stateful backends, on Valkey."""

__version__ = "0.1.0"
