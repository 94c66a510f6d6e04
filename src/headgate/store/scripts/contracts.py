"""Checks every Lua file against its header: `python -m headgate.store.scripts.contracts`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.store.scripts.script import SHARED, BrokenScript, Script

LONGEST: Final = 120
LONGEST_RENDERED: Final = 600
_USE = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_LOCALS = re.compile(r"^(local |keys\.)[\w., ]+ = ")
_PARSING = re.compile(r"string\.\w+\(context\b|context:\w+\(")


def operations() -> Iterator[Path]:
    """Find every file that is an operation; includes have no `#!lua` and are checked with what includes them."""
    for path in sorted(SHARED.parent.parent.parent.rglob("lua/**/*.lua")):
        if path.read_text().startswith("#!lua"):
            yield path
        elif path.parent != SHARED and path.parent.name != "include":
            raise BrokenScript(f"{path.name}: an operation begins with #!lua; an include lives in lua/include")


def complaints(path: Path) -> Iterator[str]:
    """Say what is wrong with one file."""
    try:
        script = Script(path)
        header = script.header
    except BrokenScript as error:
        yield str(error)
        return
    lines = path.read_text().splitlines()
    if len(lines) > LONGEST:
        yield f"{path.name}: {len(lines)} lines; {LONGEST} is the most"
    rendered = len(script.source.splitlines())
    if rendered > LONGEST_RENDERED and not header.long:
        yield f"{path.name}: {rendered} lines with its includes; above {LONGEST_RENDERED} the header says why under LONG"
    in_locals = True
    for number, line in enumerate(lines, 1):
        if not line or line.startswith(("--", "#!")):
            continue
        uses = _USE.findall(line)
        in_locals = in_locals and bool(_LOCALS.match(line) or (uses and line.startswith(" ")))
        if not in_locals:
            for table, index in uses:
                yield f"{path.name}:{number}: {table}[{index}] is named once, in the locals under the header"
    body = "\n".join(line for line in script.source.splitlines() if not line.startswith("---"))
    named = {"KEYS": set[int](), "ARGV": set[int]()}
    for table, index in _USE.findall(body):
        named[table].add(int(index))
    for table, wanted in (("KEYS", len(header.keys)), ("ARGV", header.arguments + header.context)):
        missing = set(range(1, wanted + 1)) - named[table]
        extra = {index for index in named[table] if index > wanted}
        if missing or (extra and not (table == "ARGV" and header.variadic)):
            yield f"{path.name}: {table} {sorted(missing | extra)} do not match the header"
    for code in header.refusals:
        if code not in body:
            yield f"{path.name}: {code} is promised under REFUSES but never refused"
    if header.context and "function open_thing" not in body:
        yield f"{path.name}: takes a context but does not include clock"
    if len(_PARSING.findall(body)) > 1:
        yield f"{path.name}: parses the context itself; only read_context does"


def main() -> int:
    """Check all files; give the exit code."""
    found = [complaint for path in operations() for complaint in complaints(path)]
    for complaint in found:
        sys.stderr.write(complaint + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
