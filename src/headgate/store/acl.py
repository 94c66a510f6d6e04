"""The ACL rules that our processes need in the store: their keys, their channels, and each command by name.

The commands are collected from our own source files: those that scripts call (a script runs with its caller's rights) and those
that Python sends. So each command must be a literal in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from headgate.store.scripts.script import SHARED

FEATURES: Final = ("gateway", "waiting_room", "registry", "config", "relay", "locks", "sdk")
PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "gateway": FEATURES,
    "worker": FEATURES,
    "relay": ("gateway", "relay", "registry", "locks"),
    "arena": ("waiting_room", "registry", "config", "sdk"),
}
# Sent to sentinels, or optional: the caller handles a refusal.
NOT_NEEDED: Final = frozenset({"config|get", "sentinel|get-master-addr-by-name"})
_CONTAINERS: Final = frozenset({"CLUSTER", "CONFIG", "SCRIPT", "SENTINEL", "XGROUP", "XINFO"})
_SOURCE: Final = SHARED.parent.parent.parent
_CALL = re.compile(r"(?:redis\.p?call\(|together\(queue,)\s*['\"](\w+)['\"](?:\s*,\s*['\"](\w+)['\"])?")


def rules(process: str, prefix: str) -> str:
    """Give the ACL rules of one process, to be put after a user's name and password."""
    packages = ("store", *PACKAGES[process])
    scripts = (file for package in packages for file in (_SOURCE / package).rglob("*.lua"))
    modules = (file for package in packages for file in (_SOURCE / package).rglob("*.py"))
    commands = sorted((called(scripts) | sent(modules)) - NOT_NEEDED)
    return " ".join((f"resetkeys ~{prefix}:* resetchannels &{prefix}:* -@all", *(f"+{name}" for name in commands)))


def called(scripts: Iterable[Path]) -> set[str]:
    """Find the commands that Lua files call."""
    return {_full(words) for file in scripts for words in _CALL.findall(file.read_text("utf-8"))}


def sent(modules: Iterable[Path]) -> set[str]:
    """Find the commands that Python files send."""
    return {_full(words) for file in modules for words in _sent(ast.parse(file.read_text("utf-8")))}


def _sent(module: ast.Module) -> Iterator[list[str]]:
    for call in ast.walk(module):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        words: list[ast.expr] = []
        if call.func.attr in {"send", "push"} and call.args and isinstance(call.args[0], ast.Tuple):
            words = call.args[0].elts
        elif call.func.attr == "_push":
            words = call.args
        elif call.func.attr in {"read", "write"}:
            words = call.args[1:]  # the thing comes first
        literals = [word.value if isinstance(word, ast.Constant) else None for word in words[:2]]
        if literals and isinstance(literals[0], str) and re.fullmatch(r"[A-Z]{3,}", literals[0]):
            yield [word for word in literals if isinstance(word, str)]


def _full(words: Iterable[str]) -> str:
    command, *rest = (word for word in words if word)
    return f"{command}|{rest[0]}".lower() if command.upper() in _CONTAINERS and rest else command.lower()
