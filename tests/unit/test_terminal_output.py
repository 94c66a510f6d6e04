"""Commands on a terminal of 80 columns: no word is cut, and sentences do not stand on end."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta

import pytest

from headgate.cli import output
from headgate.cli.commands.queue import _minute
from headgate.cli.commands.queue_policy_text import changes, in_words
from headgate.cli.commands.service import _ago


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout and stderr a terminal; in the test itself, because pytest sets its own before each."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    return made


def test_a_table_that_would_cut_words_is_printed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    meaning = "how long a call may take before its caller is told that the store is away"
    output.table(
        ("setting, in the environment", "value", "from", "meaning"),
        [("gateway.connections_per_address\nHEADGATE_GATEWAY_CONNECTIONS_PER_ADDRESS", "10000", "default", meaning)],
    )
    lines = terminal.getvalue().splitlines()
    assert lines[:2] == ["gateway.connections_per_address", "HEADGATE_GATEWAY_CONNECTIONS_PER_ADDRESS"]
    assert max(map(len, lines)) <= 80
    assert meaning in " ".join(terminal.getvalue().split())


def test_a_table_that_fits_stays_one_and_its_heads_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    output.table(
        ("instance", "group", "address", "state", "weight", "last heartbeat"),
        [("01M7P7AWR4H40E8QE88R3FSJRR", "default", "127.0.0.1:29600", "up", "1", "4 s ago")],
    )
    text = terminal.getvalue()
    assert "01M7P7AWR4H40E8QE88R3FSJRR  default  127.0.0.1:29600" in text
    assert "heartbeat" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_sentence_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    output.complain("There is no queue nope; " + "`headgate queue list` shows those that are there, " * 3)
    lines = terminal.getvalue().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).count("`headgate queue list`") == 3


def test_off_a_terminal_a_sentence_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("words " * 40)
    assert capsys.readouterr().err.count("\n") == 1


def test_one_of_a_thing_is_not_called_by_its_plural() -> None:
    assert [output.counted(number, "key") for number in (0, 1, 2)] == ["0 keys", "1 key", "2 keys"]
    assert output.counted(2, "process", "processes") == "2 processes"


def test_times_are_short_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    a_terminal(monkeypatch)
    assert _minute("2026-11-18T01:23:00Z") == "11-18 01:23"
    now = datetime.now(UTC)
    assert _ago((now - timedelta(seconds=3)).isoformat()) == "3 s ago"
    assert _ago((now - timedelta(minutes=5)).isoformat()) == "5 min ago"
    assert _ago("") == ""


def test_what_is_not_set_in_a_policy_has_a_word() -> None:
    said = {name: in_words(name, None) for name in ("burst", "opensAt", "auto", "capacity")}
    assert said == {"burst": "as the rate", "opensAt": "open now", "auto": "off", "capacity": "no limit"}
    assert in_words("message", "") == in_words("template", "") == "none"


def test_the_audit_tells_a_creation_and_quotes_texts() -> None:
    assert changes({"message": ""}, {"message": "hi"}) == 'message "" → "hi"'
    assert changes({}, {"ratePerSecond": None, "message": ""}) == "created"
    assert changes({}, {}) == ""
