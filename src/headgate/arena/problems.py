"""The errors of the arena."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class TicketMissing(HeadgateError):
    """Show a ticket: in ?ticketId=, in Authorization, or in Sec-WebSocket-Protocol."""

    code, status = "ticket_missing", 401


class OriginRefused(HeadgateError):
    """Pages of this site may not enter here."""

    code, status = "origin_refused", 403


class Draining(HeadgateError):
    """This server is closing; your ticket was not used and you will be given another server."""

    code, status = "draining", 503


class UpgradeRequired(HeadgateError):
    """The game is a WebSocket; a browser or a program that asks for a page finds none here."""

    code, status = "upgrade_required", 426


class TargetTooLong(HeadgateError):
    """The request's address is longer than 8 kB."""

    code, status = "target_too_long", 414


class NotAnArena(HeadgateError):
    """An arena's address looks like ws://arena.example:8081/gameserver."""

    code = "not_an_arena"


class ArenaClosed(HeadgateError):
    """The arena has closed the connection."""

    code = "arena_closed"
