"""Draws how many requests of one user arrived in the window that ends at each moment, one panel for each contestant."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH, PANEL, LEFT, TOP = 860, 118, 200, 46
INK, OVER, UNDER, GRID = "#1f2937", "#dc2626", "#2563eb", "#d1d5db"
STEPS: Final = 600


def draw(races: Sequence[tuple[str, Sequence[float]]], limit: int, seconds: float) -> str:
    """Give the chart as SVG."""
    longest = max(moments[-1] for _, moments in races)
    highest = max(max(_windows(moments, longest, seconds)) for _, moments in races)
    height = TOP + PANEL * len(races) + 34
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" '
            f'font-size="13" role="img" aria-label="Arrivals in the last {seconds:g} seconds, by contestant">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        (
            f'<text x="16" y="26" fill="{INK}" font-size="16" font-weight="600">Arrivals at the upstream in any window of '
            f"{seconds:g} s; it refuses more than {limit}</text>"
        ),
    ]
    for number, (name, moments) in enumerate(races):
        parts += _panel(name, _windows(moments, longest, seconds), TOP + number * PANEL, limit, highest)
    bottom = TOP + len(races) * PANEL
    parts += [
        f'<text x="{LEFT + (WIDTH - LEFT - 20) * share:.0f}" y="{bottom + 18}" fill="{INK}" text-anchor="middle">'
        f"{longest * share:.0f} s</text>"
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, counts: Sequence[int], top: int, limit: int, highest: int) -> list[str]:
    room = PANEL - 22

    def y(count: float) -> float:
        return top + room - count / highest * (room - 8)

    def x(step: int) -> float:
        return LEFT + step / (STEPS - 1) * (WIDTH - LEFT - 20)

    most = max(counts)
    colour = OVER if most > limit else UNDER
    line = " ".join(f"{x(step):.1f},{y(count):.1f}" for step, count in enumerate(counts))
    return [
        f'<line x1="{LEFT}" y1="{y(0):.1f}" x2="{WIDTH - 20}" y2="{y(0):.1f}" stroke="{GRID}"/>',
        (
            f'<line x1="{LEFT}" y1="{y(limit):.1f}" x2="{WIDTH - 20}" y2="{y(limit):.1f}" stroke="{INK}" '
            'stroke-dasharray="4 4" stroke-width="1"/>'
        ),
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
        f'<text x="16" y="{top + 40}" fill="{INK}" font-weight="600">{escape(name)}</text>',
        f'<text x="16" y="{top + 60}" fill="{colour}">at most {most}</text>',
    ]


def _windows(moments: Sequence[float], longest: float, seconds: float) -> list[int]:
    counts = []
    for step in range(STEPS):
        moment = longest * step / (STEPS - 1)
        counts.append(bisect_right(moments, moment) - bisect_right(moments, moment - seconds))
    return counts
