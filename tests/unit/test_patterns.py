r"""Our regular expressions: `$` also matches before a newline at the end, so none of them uses it; `\Z` is the end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headgate

SOURCES = Path(headgate.__file__).parent
FUNCTIONS = frozenset({"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"})


def has_dollar(pattern: str) -> bool:
    """Look for a `$` that is neither escaped nor one of a set of signs."""
    at, within = 0, 0  # the position at which the set begins, 0 outside of one
    while at < len(pattern):
        sign = pattern[at]
        at += 2 if sign == "\\" else 1
        if within and sign == "]" and at - 1 > within:
            within = 0
        elif not within and sign == "[":
            at += pattern.startswith("^", at)
            within = at
        elif not within and sign == "$":
            return True
    return False


def patterns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and text of whatever is used as a regular expression: arguments of `re`, `pattern=`, `…PATTERN = …`."""
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            called = node.func
            if (
                isinstance(called, ast.Attribute)
                and called.attr in FUNCTIONS
                and isinstance(called.value, ast.Name)
                and called.value.id == "re"
            ):
                found += node.args[:1]
            found += [keyword.value for keyword in node.keywords if keyword.arg == "pattern"]
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id.endswith("PATTERN") for target in node.targets
        ):
            found.append(node.value)
        for expression in found:
            for part in ast.walk(expression):
                if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                    value = part.value
                    yield part.lineno, value if isinstance(value, str) else value.decode("latin-1")


def test_no_pattern_of_ours_ends_before_a_newline() -> None:
    found = [
        (path, line, text)
        for path in sorted(SOURCES.rglob("*.py"))
        for line, text in patterns(ast.parse(path.read_text()))
    ]
    assert len(found) > 40
    assert [f"{path.relative_to(SOURCES)}:{line}" for path, line, text in found if has_dollar(text)] == []


def test_the_check_tells_an_end_from_a_sign() -> None:
    assert all(map(has_dollar, ["^a$", r"a|$", "[a]$", r"\\$", r"[]$]$", r"(?:x|$)"]))
    assert not any(map(has_dollar, [r"\$", "[$]", r"[^$a]", r"[\]$]", r"a\Z", "[]$]"]))
