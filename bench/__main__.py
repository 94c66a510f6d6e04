"""`./dev bench [name]`: run one benchmark, or say which there are."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> dict[str, str]:
    """Find every benchmark, a module with a `main`, and the first line of what it is for."""
    found = {}
    for file in sorted(HERE.glob("*.py")):
        tree = ast.parse(file.read_text())
        is_benchmark = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
        if is_benchmark and not file.stem.startswith("_"):
            found[file.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def choose(arguments: list[str]) -> int:
    """Run the benchmark that was named; everything after the name is for it."""
    known = names()
    if not arguments or arguments[0] not in known:
        for name, words in known.items():
            print(f"./dev bench {name:14} {words}", file=sys.stderr)
        return 2
    importlib.import_module(f"bench.{arguments[0].replace('-', '_')}").main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(choose(sys.argv[1:]))
