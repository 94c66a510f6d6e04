"""The commands that README and docs tell people to type: each is there, and it is not refused for its form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cyclopts import App

from headgate.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("README.md"))]


def typed(page: Path, program: str) -> list[str]:
    """Give the command lines of a page: in its blocks, and in its text where they stand in back quotes."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r"\\\n", " ", block).splitlines()]
    lines += re.findall(rf"`({program} [^`\n]*)`", text)
    return [line.split("#")[0].strip() for line in lines if line.startswith(f"{program} ")]


def known(words: list[str]) -> bool:
    """Tell whether there is such a command; words after it are its arguments."""
    at: App = app
    for word in words:
        if not re.fullmatch(r"[a-z]+", word):
            return at is not app or word.startswith("--")
        if word not in {name for each in at for name in (at[each].name)}:
            return at is not app and not any(True for each in at if not each.startswith("-"))
        at = at[word]
    return True


COMMANDS = sorted({line for page in PAGES for line in typed(page, "headgate")})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_is_written_down_exists(line: str) -> None:
    words = re.split(r"[·…]| -- ", line)[0].replace("'", "").split()[1:]
    assert known(words), line


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert COMMANDS
    assert not known(["queu", "list"])
    assert not known(["queue", "lst"])


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in typed(page, "curl")}))
def test_curl_sends_json_as_json(line: str) -> None:
    assert " -d " not in line or "Content-Type: application/json" in line, f"{line} would be a form, which is refused"
