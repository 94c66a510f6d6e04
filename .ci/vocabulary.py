"""Checks our vocabulary: no class name twice in `src`, and no docstring or Lua comment that begins with a riddle.

A name that two classes share makes a reader look up which is meant. A docstring that begins with "What", "Those", "Who" or
"Whoever" paraphrases a thing instead of naming it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headgate"
# The SDK offers the same concept as the feature itself: what users import is named like what it talks to.
SAME_CONCEPT = {"Config", "Gate", "Registry", "Relay"}
RIDDLE = re.compile(r"(What|Those|Who|Whoever|Whom|Whose|Whatever)\b(?! happen)")
_LUA_COMMENT = re.compile(r"(?:(?<=\n)|^)(?:--- .*\n)+", re.MULTILINE)


def complaints() -> Iterator[str]:
    """Say what is wrong in all sources, tests, benchmarks and examples."""
    defined: dict[str, list[str]] = defaultdict(list)
    for folder in ("src", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and path.is_relative_to(SOURCE):
                    defined[node.name].append(f"{where}:{node.lineno}")
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node) or ""
                    if RIDDLE.match(text):
                        line = getattr(node, "lineno", 1)
                        yield f"{where}:{line}: say what it is or does, not {text.split('.')[0][:60]!r}"
    for name, places in sorted(defined.items()):
        if len(places) > 1 and not (name in SAME_CONCEPT and len(places) == 2):
            yield f"class {name} is defined {len(places)} times: {', '.join(places)}"
    for path in sorted(SOURCE.rglob("*.lua")):
        for comment in _LUA_COMMENT.findall(path.read_text()):
            if RIDDLE.match(comment.removeprefix("--- ")):
                yield f"{path.relative_to(ROOT)}: say what it is or does, not {comment[4:64].splitlines()[0]!r}"


def main() -> int:
    """Print the complaints; give the exit code."""
    found = list(complaints())
    for complaint in found:
        sys.stderr.write(complaint + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
