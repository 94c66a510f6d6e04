"""Logs: their form, the live level, and that no secret gets through."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import msgspec
import pytest

from headgate.kit import logs
from headgate.kit.logs import Format, Level, LogSettings, get_logger


@pytest.fixture
def lines() -> io.StringIO:
    """A configured log."""
    stream = io.StringIO()
    logs.configure(LogSettings(format=Format.JSON), "tests", stream=stream)
    return stream


def written(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in stream.getvalue().splitlines()]


def test_a_line_off_a_terminal_is_json_with_phrase_keys_time_and_process(lines: io.StringIO) -> None:
    get_logger().info("queue opened", queue="main", seats=3)
    (line,) = written(lines)
    assert str(line.pop("time")).endswith("Z")
    assert line == {"level": "info", "event": "queue opened", "queue": "main", "seats": 3, "process": "tests"}


def test_an_exception_is_one_line_of_json(lines: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger().exception("job failed", job="sweep")
    (line,) = written(lines)
    assert line["level"] == "error"
    assert "ValueError: broken" in str(line["exception"])


def test_what_json_does_not_know_is_written_all_the_same(lines: io.StringIO) -> None:
    get_logger().info("odd", value=object)
    assert written(lines)[0]["value"] == "<class 'object'>"


def test_the_level_changes_for_loggers_that_exist_already(lines: io.StringIO) -> None:
    log = get_logger()
    log.debug("unheard")
    logs.switch_debug()
    log.debug("heard")
    logs.switch_debug()
    log.debug("unheard")
    logs.set_level(Level.ERROR)
    log.warning("unheard")
    log.error("heard")
    assert [line["event"] for line in written(lines)] == ["heard"] * 2


def test_records_of_other_libraries_come_out_alike(lines: io.StringIO) -> None:
    logging.getLogger("granian").warning("worker %s left", 3)
    logging.getLogger("httpx2").info("chatter")
    (line,) = written(lines)
    assert (line["event"], line["logger"], line["level"]) == ("worker 3 left", "granian", "warning")


@pytest.mark.parametrize("key", ["token", "admin_token", "ticket", "cookie", "authorization", "password"])
def test_keys_that_carry_secrets_are_masked(lines: io.StringIO, key: str) -> None:
    get_logger().info("seen", **{key: "s3cret-value"})
    assert "s3cret" not in lines.getvalue()
    assert written(lines)[0][key] == logs.MASK


def test_a_hidden_text_is_masked_wherever_it_turns_up(lines: io.StringIO) -> None:
    logs.hide('pass"word-1')
    get_logger().info("seen", detail='it was pass"word-1, twice: pass"word-1', nested={"a": ['pass"word-1']})
    assert "word-1" not in lines.getvalue()


def test_a_password_in_a_url_is_masked(lines: io.StringIO) -> None:
    get_logger().info("connecting", url="valkey://me:hush@lake:1/0")
    assert written(lines)[0]["url"] == f"valkey://me:{logs.MASK}@lake:1/0"


def test_a_library_logs_to_the_standard_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headgate")
    logs.hide("hush-hush")
    log = get_logger()
    log.debug("connecting", url="valkey://me:hush@lake:1/0", token="s3cret", words="two words", other="hush-hush")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("listener failed", key="a")
    first, second = caplog.records
    assert (first.name, first.levelname, first.module) == ("headgate", "DEBUG", "test_logs")
    assert first.getMessage() == (
        f"connecting url=valkey://me:{logs.MASK}@lake:1/0 token={logs.MASK} words='two words' other={logs.MASK}"
    )
    assert (second.levelname, second.__dict__["event"], second.__dict__["keys"]) == (
        "ERROR",
        "listener failed",
        {"key": "a"},
    )
    assert second.exc_info is not None


def test_a_library_says_nothing_by_itself() -> None:
    program = "from headgate.kit.logs import get_logger; get_logger().debug('d'); get_logger().error('e', a=1)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_a_reader_who_went_away_does_not_fail_the_work() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    logs.configure(LogSettings(format=Format.JSON), "tests", stream=Closed())
    get_logger().info("into the void")


def test_a_terminal_gets_text() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    logs.configure(LogSettings(), "tests", stream=stream)
    get_logger().info("queue opened", queue="main")
    assert not stream.getvalue().startswith("{")
    assert "queue opened" in stream.getvalue()
