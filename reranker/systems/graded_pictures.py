"""The ROC of several systems as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from reranker.evaluation.curves import Roc
from reranker.systems.task import Picture

COLOURS = ("#0b5fa5", "#c1440e", "#2b7a3d", "#7b3fa0", "#8a6d00", "#4d4d4d")
DASHES = ("none", "6 3", "2 3", "9 3 2 3", "12 4", "4 2")
_SIDE, _LEFT, _TOP, _KEY = 320, 46, 14, 220
_POINTS = 200


def roc_picture(name: str, rocs: Mapping[str, Roc], title: str) -> Picture | None:
    """Return the curves, each in its colour and dashes, with the area in the key; None without a curve."""
    if not rocs:
        return None
    width, height = _LEFT + _SIDE + _KEY, _TOP + _SIDE + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#777777"/>',
        f'<path d="M{_LEFT} {_TOP + _SIDE}L{_LEFT + _SIDE} {_TOP}" stroke="#bbbbbb" fill="none"/>',
    ]
    for tick in (0.0, 0.5, 1.0):
        x, y = _place(tick, 0.0)
        parts.append(f'<text x="{x:.0f}" y="{y + 15:.0f}" text-anchor="middle">{tick:g}</text>')
        x, y = _place(0.0, tick)
        parts.append(f'<text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{tick:g}</text>')
    middle = _TOP + _SIDE / 2
    parts.append(f'<text x="{_LEFT + _SIDE / 2:.0f}" y="{height - 8}" text-anchor="middle">false positives</text>')
    parts.append(
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
        f"true positives</text>"
    )
    for number, (label, roc) in enumerate(rocs.items()):
        style = f'stroke="{COLOURS[number % 6]}" stroke-dasharray="{DASHES[number % 6]}" stroke-width="1.6"'
        parts.append(f'<path d="{_path(roc)}" fill="none" {style}/>')
        x, y = _LEFT + _SIDE + 14, _TOP + 14 + 20 * number
        parts.append(f'<path d="M{x} {y - 4}h26" fill="none" {style}/>')
        parts.append(f'<text x="{x + 32}" y="{y}">{escape(label)}, {roc.area:.3f}</text>')
    parts.append("</svg>")
    alt = f"{title}. Areas: " + ", ".join(f"{label} {roc.area:.3f}" for label, roc in rocs.items())
    return Picture(name, title, alt, "\n".join(parts).encode("utf-8"))


def _path(roc: Roc) -> str:
    """Return the curve through at most 200 of its points, evenly spread over them."""
    chosen = np.unique(np.linspace(0, len(roc.thresholds) - 1, _POINTS).round().astype(int))
    points = zip(roc.false_positive_rate[chosen].tolist(), roc.true_positive_rate[chosen].tolist(), strict=True)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (_place(*point) for point in points))


def _place(false_positive_rate: float, true_positive_rate: float) -> tuple[float, float]:
    return _LEFT + _SIDE * false_positive_rate, _TOP + _SIDE * (1.0 - true_positive_rate)
