"""Snapshots on disk: whole or ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.sdk.snapshot import Snapshots
from headgate.sdk.views import Saved, View


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots[Saved]:
    made = Snapshots(tmp_path, Saved)
    made.write("game@g", Saved([], 7, "5"))
    return made


def test_what_was_written_is_read(snapshots: Snapshots[Saved]) -> None:
    assert snapshots.read("game@g") == Saved([], 7, "5")
    assert snapshots.read("other@g") is None


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other", "binary"])
async def test_a_damaged_file_is_ignored(snapshots: Snapshots[Saved], tmp_path: Path, damage: str) -> None:
    (file,) = tmp_path.glob("*.json")
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[:-4], "changed": whole.replace(b"7", b"8"), "empty": b"", "other": b"[1, 2]\n{}",
            "binary": b"\xff\x00" * 50,
        }[damage]
    )  # fmt: skip
    assert snapshots.read("game@g") is None
    view = View("game@g", snapshots)
    view.load()
    assert not view.known


def test_a_disk_that_refuses_costs_only_the_snapshot(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    made = Snapshots(blocked / "under", Saved)
    made.write("game@g", Saved([], 1, "1"))
    assert made.read("game@g") is None
