"""`./dev` finds the Python that it is asked for, also where pyenv hides it, and says so where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def dev(*words: str, path: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": path or os.environ["PATH"], **environment}
    return subprocess.run([ROOT / "dev", *words], capture_output=True, text=True, env=variables, timeout=60)


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_a_python_that_does_not_run_is_refused_with_its_name(tmp_path: Path) -> None:
    program(tmp_path / "python3.99", "exit 127")
    answer = dev("version", PYTHON=str(tmp_path / "python3.99"))
    assert answer.returncode == 1
    assert answer.stderr == f"dev: PYTHON={tmp_path}/python3.99 is not a Python 3.11 or later that runs here.\n"


def test_a_version_that_pyenv_has_but_did_not_choose_is_found(tmp_path: Path) -> None:
    name = f"python{VERSION}"
    program(tmp_path / "shims" / name, "exit 127")
    program(tmp_path / "shims" / "pyenv", f'[ "$1" = root ] && echo "{tmp_path}"')
    program(tmp_path / "versions" / f"{VERSION}.1" / "bin" / name, f'exec {sys.executable} "$@"')
    answer = dev("version", path=f"{tmp_path / 'shims'}:/usr/bin:/bin", PYTHON=name)
    assert (answer.returncode, answer.stdout) == (0, f"{VERSION}\n"), answer.stderr


def test_an_unknown_command_is_answered_with_all_that_there_are() -> None:
    answer = dev("frobnicate")
    assert answer.returncode == 2
    assert "./dev test" in answer.stderr
    assert "PYTHON=" in answer.stderr


def run_ci(directory: Path, newest: str) -> tuple[str, list[str]]:
    """Run `.ci/run` beside a `dev` that only writes down its calls, on a machine whose newest Python is this one."""
    program(
        directory / "dev",
        f'case "$1" in newest-python) echo python{newest} ;; version) echo "${{PYTHON:-python3.11}}" | cut -c7- ;; '
        f'*) echo "${{PYTHON:-default}} $*" >>"{directory}/calls" ;; esac',
    )
    script = directory / ".ci" / "run"
    script.parent.mkdir()
    script.write_text((ROOT / ".ci" / "run").read_text())
    environment = {"PATH": os.environ["PATH"]}  # without the PYTHON that these tests may run with
    ended = subprocess.run(["sh", script], capture_output=True, text=True, env=environment, timeout=60, check=True)
    return ended.stdout, (directory / "calls").read_text().splitlines()


def test_ci_runs_everything_on_the_default_python_and_most_of_it_on_the_newest(tmp_path: Path) -> None:
    _, calls = run_ci(tmp_path, "3.13")
    assert calls[0] == "default check"
    assert calls[1].startswith("default test --topology every")
    assert calls[2].startswith("python3.13 test tests/unit tests/store tests/http")


def test_ci_says_in_one_line_that_there_is_only_one_python(tmp_path: Path) -> None:
    said, calls = run_ci(tmp_path, "3.11")
    assert said == "ci: only one Python is on this machine (python3.11); the tests ran on no other.\n"
    assert len(calls) == 2
