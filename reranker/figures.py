"""Pictures drawn by matplotlib: no clock and no chance in the file, so equal numbers give equal bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reranker.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa4b2",
    "axes.labelcolor": "#3d4653",
    "xtick.color": "#3d4653",
    "ytick.color": "#3d4653",
    "axes.grid": True,
    "grid.color": "#e8ecf1",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
"""Of the pictures in reports: light lines, a grid, and texts that stay texts."""


def picture_kind(path: Path, kinds: Sequence[str]) -> str:
    """Return the kind of picture that a file name asks for, such as ``.png``.

    Raises
    ------
    ConfigError
        If it is none of ``kinds``.
    """
    kind = path.suffix.lower()
    if kind not in kinds:
        raise ConfigError(f"the picture {str(path)!r} is of no known kind: name a file {', '.join(kinds)}")
    return kind


@contextmanager
def new_figure(
    width: float, height: float, *, extra: str, style: Mapping[str, Any] | None = None, salt: str = "ssi"
) -> Iterator[Figure]:
    """Hand out an empty figure, to be drawn and turned to bytes before the block ends.

    Parameters
    ----------
    width, height : float
        Inches of 72 points.
    extra : str
        The optional part of the package that brings matplotlib to those who draw this.
    style : mapping, optional
        Settings of matplotlib within the block.
    salt : str
        What names inside an SVG are made from.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", extra) from error
    with mpl.rc_context({**(style or {}), "svg.hashsalt": salt}):
        yield Figure(figsize=(width, height), layout="constrained")


def picture_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return a figure as a file of ``kind`` (``png`` or ``svg``) without its date; ``options`` go to ``savefig``."""
    target = io.BytesIO()
    figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None}, **options)
    return target.getvalue()
