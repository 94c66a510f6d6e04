"""Charts as SVG: lines over time and a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

WIDTH: Final = 1040
HEIGHT: Final = 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 36
MOST_POINTS: Final = 500


class ChartSeries(msgspec.Struct, frozen=True):
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str
    filled: bool = False


def chart(series: Sequence[ChartSeries], unit: str) -> str:
    """Draw lines over seconds."""
    series = [ChartSeries(one.name, _thinned(one.points), one.color, one.filled) for one in series if one.points]
    if not series:
        return "<p>Nothing was measured.</p>"
    right = max(point[0] for one in series for point in one.points) or 1.0
    top = _ceiling(max(point[1] for one in series for point in one.points))
    drawn = "".join(_line(one, right, top) for one in series)
    legend = "".join(f'<span><i style="background:{one.color}"></i>{escape(one.name)}</span>' for one in series)
    axes = _axes(0.0, right, top, unit, "seconds")
    names = ", ".join(one.name for one in series)
    return f'{_plot(names, axes + drawn)}<div class="legend">{legend}</div>'


def histogram(numbers: Sequence[float], color: str, unit: str, bars: int = 40) -> str:
    """Draw a histogram; the lowest and highest hundredth go into the outer bars."""
    ordered = sorted(numbers)
    low, high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    counts = [0] * bars
    for number in ordered:
        counts[min(bars - 1, max(0, int((number - low) / (high - low) * bars)))] += 1
    top = _ceiling(max(counts))
    wide = (WIDTH - LEFT - RIGHT) / bars
    drawn = []
    for at, count in enumerate(counts):
        y = _y(count, top)
        start, end = low + (high - low) * at / bars, low + (high - low) * (at + 1) / bars
        drawn.append(
            f'<rect x="{LEFT + at * wide:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'fill="{color}"><title>{start:.1f} to {end:.1f}: {count:,}</title></rect>'
        )
    axes = _axes(low, high, top, "players", unit)
    return _plot(unit, axes + "".join(drawn))


def _plot(name: str, drawn: str) -> str:
    """Wrap a chart so that it scrolls sideways on a phone, because scaled-down text could not be read."""
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{drawn}</svg>'
    return f'<div class="plot" tabindex="0" role="group" aria-label="{escape(name)}">{svg}</div>'


def _line(series: ChartSeries, right: float, top: float) -> str:
    points = " ".join(f"{_x(at, 0.0, right):.1f},{_y(value, top):.1f}" for at, value in series.points)
    line = f'<polyline points="{points}" fill="none" stroke="{series.color}" stroke-width="2" stroke-linejoin="round"/>'
    if not series.filled:
        return line
    base = HEIGHT - BOTTOM
    first, last = _x(series.points[0][0], 0.0, right), _x(series.points[-1][0], 0.0, right)
    return (
        f'<polygon points="{first:.1f},{base} {points} {last:.1f},{base}" fill="{series.color}" opacity=".15"/>{line}'
    )


def _axes(left: float, right: float, top: float, unit: str, below: str) -> str:
    parts = []
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for value in _ticks(left, right):
        x = _x(value, left, right)
        anchor = "end" if x > WIDTH - RIGHT - 20 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="{anchor}">{_number(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(below)}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 3}">{escape(unit)}</text>')
    return "".join(parts)


def _x(value: float, left: float, right: float) -> float:
    return LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _ceiling(value: float) -> float:
    """Give the next larger number that divides well by four."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value)


def _ticks(left: float, right: float) -> list[float]:
    """Give about eight round numbers between two."""
    rough = (right - left) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(round_step * power for round_step in (1, 2, 5, 10) if round_step * power >= rough)
    first = math.ceil(left / step)
    return [number * step for number in range(first, math.floor(right / step) + 1)]


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Reduce the points of a line: keep the highest of each interval."""
    if len(points) <= MOST_POINTS:
        return points
    step = len(points) / MOST_POINTS
    return [max(points[int(at * step) : int((at + 1) * step)], key=lambda point: point[1]) for at in range(MOST_POINTS)]
