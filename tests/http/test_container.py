"""The files that a container is built from: `.dockerignore` lets in what the build needs, and nothing that is ours alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


def reaches_the_build(name: str) -> bool:
    """Apply the rules as Docker does: the last one that names a path, or a directory above it, decides."""
    path, taken = PurePosixPath(name), True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.removeprefix("!").strip()
        if not rule or rule.startswith("#"):
            continue
        for above in (path, *path.parents[:-1]):
            parts = above.parts
            if rule.startswith("**/"):
                named = fnmatchcase(parts[-1], rule.removeprefix("**/"))
            else:
                wanted = PurePosixPath(rule).parts
                named = len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
            if named:
                taken = line.startswith("!")
    return taken


@pytest.mark.parametrize(
    "name",
    [
        ".headgate/token", ".headgate/signing.json", ".venv/bin/python", ".git/config", ".env", "headgate.toml", "build/x",
        "tests/raw.py", ".mypy_cache/x", ".hypothesis/x", "src/headgate/__pycache__/x.pyc", "src/headgate/kit/x.pyc",
        "node_modules/x", "dump.rdb", "deploy/kubernetes/secret.yaml",
    ],
)  # fmt: skip
def test_what_is_ours_alone_does_not_reach_the_build(name: str) -> None:
    assert not reaches_the_build(name)


def test_what_reaches_the_build_is_all_that_it_needs(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    taken = [name for name in listed.splitlines() if reaches_the_build(name)]
    for name in taken:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for source in re.findall(
        r"^COPY (\S+) ", (ROOT / "deploy" / "kubernetes" / "Dockerfile").read_text(), re.MULTILINE
    ):
        assert source.startswith("--from") or (tmp_path / source).exists(), source
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {name.removeprefix("src/") for name in taken if name.startswith("src/headgate/")}
    assert packed == expected | {f"headgate/{name}" for name in taken if name.startswith("web/")}
