"""Errors of the store become problems: one with our words for callers, and the store's words for operators."""

from __future__ import annotations

import json

import pytest

from headgate.cli.commands.doctor.finding import Severity
from headgate.cli.commands.doctor.store_checks import memory
from headgate.cli.error_advice import next_step
from headgate.kit.problems import HeadgateError, StoreFull, StoreUnavailable, from_document
from headgate.sdk import Headgate
from headgate.store.client.link import ServerError
from headgate.store.errors import as_problem
from headgate.store.facts import NodeFacts
from tests.topology import HOST, free_port

WORDS = "Hash slot not served at 10.0.0.7:6379"


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("CLUSTERDOWN", "store_unavailable"),
        ("LOADING", "store_unavailable"),
        ("READONLY", "store_unavailable"),
        ("MISCONF", "store_unavailable"),
        ("OOM", "store_full"),
        ("NOPERM", "store_refused"),
        ("ERR", "script_failed"),
        ("WRONGTYPE", "script_failed"),
    ],
)
def test_documents_have_no_words_of_the_store(word: str, code: str) -> None:
    error = as_problem(ServerError(f"{word} {WORDS}"))
    assert error.code == code
    document = json.dumps(error.document())
    assert WORDS not in document
    assert word not in document
    assert str(error) == error.detail
    if word != "OOM":
        assert WORDS in error.detail


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("NOAUTH HELLO must be called with the client already authenticated", "valkey://:PASSWORD@host:port/0."),
        ("WRONGPASS invalid username-password pair or user is disabled.", "valkey://USER:PASSWORD@host:port/0"),
    ],
)
def test_a_password_that_is_missing_or_wrong_is_told_where_it_is_written(said: str, wanted: str) -> None:
    error = as_problem(ServerError(said))
    assert error.code == "store_refused"
    assert wanted in error.detail
    assert "doctor" not in error.detail


def test_a_full_store_has_a_next_step_of_its_own() -> None:
    assert "maxmemory" in next_step(StoreFull())
    assert "Check that it runs" in next_step(StoreUnavailable())


@pytest.mark.parametrize(
    ("used", "level"),
    [(81, Severity.WARNING), (99, Severity.WARNING), (100, Severity.PROBLEM), (120, Severity.PROBLEM)],
)
def test_a_full_store_is_a_problem_for_doctor(used: int, level: Severity) -> None:
    node = NodeFacts(
        endpoint="127.0.0.1:1", server="valkey", version=(8, 0, 0), memory_policy="noeviction",
        used_memory=used, most_memory=100, append_only=True, append_only_ok=True, snapshots=True, replicas=0,
        min_replicas=None, replication_id="", clock_ms=0,
    )  # fmt: skip
    assert [finding.level for finding in memory(node) if finding.check == "memory"] == [level]


def test_a_member_called_reason_is_a_member() -> None:
    """A problem document of another version can be read, with any fields."""
    error = from_document({"code": "store_unavailable", "detail": "Away.", "reason": "x", "public_detail": "y"}, 503)
    assert isinstance(error, StoreUnavailable)
    assert (error.detail, error.reason, error.members["reason"]) == ("Away.", None, "x")


def test_a_problem_without_a_reason_says_the_same_to_everybody() -> None:
    error = HeadgateError("Something.").because(None).because("")
    assert error.detail == error.public_detail == error.document()["detail"] == "Something."


@pytest.mark.anyio
@pytest.mark.parametrize("needs_store", [True, False])
async def test_a_store_that_cannot_be_reached_is_named_without_its_password(needs_store: bool) -> None:
    port = free_port()
    with pytest.raises(StoreUnavailable) as raised:
        async with Headgate(f"valkey://:secret@{HOST}:{port}/0", needs_store=needs_store) as hg:
            await hg.queue.board("main")
    assert f"The store does not answer: {HOST}:{port} cannot be reached" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert str(port) not in json.dumps(raised.value.document()), "callers of a gateway are not told where its store is"
