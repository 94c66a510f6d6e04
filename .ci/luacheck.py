"""Runs luacheck over all Lua files, twice: as they are, and with what they include.

A file alone does not know the functions that its includes bring, and a file with its includes has functions that it does
not use. So each run looks only for what it can tell: unused and careless code in the files, unknown names in the whole.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headgate.store.scripts.contracts import operations
from headgate.store.scripts.script import Script

ROOT = Path(__file__).parents[1]
LUACHECK = ["luacheck", "--quiet", "--no-color", "--codes", "--config", str(ROOT / ".luacheckrc")]
UNKNOWN_NAMES = ("111", "112", "113")


def main() -> int:
    """Run luacheck; give the exit code."""
    if shutil.which("luacheck") is None:
        sys.stderr.write("luacheck is not installed\n")
        return 1
    whole = list(operations())
    includes = [file for file in (ROOT / "src").rglob("*.lua") if file not in whole]
    failed = run([*map(str, whole), "--ignore", *UNKNOWN_NAMES])
    failed |= run([*map(str, includes), "--ignore", *UNKNOWN_NAMES, "211"])
    with tempfile.TemporaryDirectory() as directory:
        for file in whole:
            rendered = Path(directory) / file.parent.parent.name / file.name
            rendered.parent.mkdir(exist_ok=True)
            rendered.write_text(Script(file).source)
        failed |= run([directory, "--only", *UNKNOWN_NAMES])
    return int(failed)


def run(arguments: list[str]) -> bool:
    """Run luacheck once and tell whether it complained."""
    return subprocess.run([*LUACHECK, *arguments], check=False).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
