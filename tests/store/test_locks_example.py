"""The example of a fenced write runs and says what its documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.topology import Topology

EXAMPLE = Path(__file__).parents[2] / "examples" / "fenced_sqlite.py"


def test_the_late_write_is_refused_by_sqlite(server: Topology) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), server.url], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("first holder:  The lock account-1 was lost") for line in lines)
    assert "second holder: wrote 70: True" in lines
    assert "first holder:  wrote 90 late: False" in lines
    assert lines[-1] == "balance: 70"
