"""Snapshots on disk: whole or ignored."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from time import time

import pytest

from headgate.sdk.service_view import SavedView, ServiceView
from headgate.sdk.snapshot import Snapshots, cache_directory


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots[SavedView]:
    made = Snapshots(tmp_path, SavedView)
    made.write("game@g", SavedView([], 7, {"g": "5"}))
    return made


def test_what_was_written_is_read(snapshots: Snapshots[SavedView]) -> None:
    assert snapshots.read("game@g") == SavedView([], 7, {"g": "5"})
    assert snapshots.read("other@g") is None


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other", "binary"])
async def test_a_damaged_file_is_ignored(snapshots: Snapshots[SavedView], tmp_path: Path, damage: str) -> None:
    (file,) = tmp_path.glob("*.json")
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[:-4], "changed": whole.replace(b"7", b"8"), "empty": b"", "other": b"[1, 2]\n{}",
            "binary": b"\xff\x00" * 50,
        }[damage]
    )  # fmt: skip
    assert snapshots.read("game@g") is None
    view = ServiceView("game@g", "g", snapshots)
    view.load()
    assert not view.known


def test_a_disk_that_refuses_costs_only_the_snapshot(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    made = Snapshots(blocked / "under", SavedView)
    made.write("game@g", SavedView([], 1))
    assert made.read("game@g") is None


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    made = Snapshots(tmp_path / "deep" / "down", SavedView)
    made.write("game@g", SavedView([], 1))
    (file,) = tmp_path.rglob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "config keeps secrets there"
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_what_killed_writers_left_behind_is_taken_away(snapshots: Snapshots[SavedView], tmp_path: Path) -> None:
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time() - 7200, time() - 7200))
    Snapshots(tmp_path, SavedView).write("game@h", SavedView([], 1))
    assert not old.exists()
    assert new.exists(), "somebody may be writing it"
    assert snapshots.read("game@g") is not None


def test_a_user_without_a_home_has_snapshots_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert str(os.getuid()) in cache_directory().name
