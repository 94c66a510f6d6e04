"""The peers' own dependencies, installed when a benchmark first needs them, outside our environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.harness import ROOT, progress

NODE: Final = ROOT / "bench" / "contestants" / "node"
PYTHON: Final = ROOT / "bench" / "contestants" / "python"
_INSTALL_SECONDS: Final = 300


def node(program: str) -> list[str] | None:
    """Give the command of a Node peer, or None (said aloud) where there is no Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        progress("no Node here: its peers are left out")
        return None
    if _stale(NODE / "node_modules", NODE / "package.json"):
        progress("installing the Node peers")
        # No lock file: it would name the registry it came from. The versions are exact in package.json.
        _install(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"], NODE)
        (NODE / "node_modules").touch()
    return ["node", str(NODE / program)]


def python(program: str, *arguments: str) -> list[str]:
    """Give the command of a Python peer, which has an environment of its own."""
    home = PYTHON / ".venv"
    wanted = ROOT / "requirements" / "bench.txt"
    if _stale(home, wanted):
        progress("installing the Python peers")
        _install([sys.executable, "-m", "venv", "--clear", str(home)], PYTHON)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*pip, "--require-hashes", "-r", str(wanted)], PYTHON)
        home.touch()
    return [str(home / "bin" / program), *arguments]


def _stale(installed: Path, wanted: Path) -> bool:
    return not installed.exists() or installed.stat().st_mtime < wanted.stat().st_mtime


def _install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    if done.returncode:
        raise SystemExit(f"bench: {command[0]} could not install the peers: {(done.stderr or done.stdout).strip()}")
