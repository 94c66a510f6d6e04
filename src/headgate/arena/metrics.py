"""Metrics of the arena."""

from __future__ import annotations

from headgate.kit.metrics import counter, gauge

PLAYERS = gauge("headgate_arena_current_users", "Players inside.", ["queue"])
SOFT_CAP = gauge("headgate_arena_soft_cap", "Seats that promotion fills.", ["queue"])
MAX_CAP = gauge("headgate_arena_max_cap", "Seats at the very most.", ["queue"])
HANDSHAKES = counter("headgate_arena_handshakes_total", "Handshakes, by how they ended.", ["outcome"])
RECEIVED = counter(
    "headgate_arena_messages_received_total", "Frames from players, by what became of them.", ["outcome"]
)
DELIVERED = counter("headgate_arena_messages_delivered_total", "Messages handed to players' connections.")
CLOSED = counter("headgate_arena_closed_total", "Connections that ended, by why.", ["why"])
