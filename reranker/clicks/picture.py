"""The click rate by rank as a picture: bars for a terminal, PNG, or one HTML file with everything the doctor found."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from reranker.clicks.bias import Propensities
from reranker.clicks.diagnosis import Diagnosis, RankRate
from reranker.clicks.layout import replacing
from reranker.figures import new_figure, picture_bytes, picture_kind

FORMATS = (".png", ".svg", ".html")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLOURS = {"ok": "#1a7f37", "warning": "#9a6700", "unsound": "#cf222e"}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1f2328}"
    "table{border-collapse:collapse}td,th{padding:.25rem .75rem;border-bottom:1px solid #d1d9e0;text-align:right}"
    "li{margin:.35rem 0}b{text-transform:uppercase;font-size:.8rem}svg{max-width:100%;height:auto}"
)


def bars(rates: Sequence[RankRate], width: int = 40, limit: int = 20) -> list[str]:
    """Return one line a rank: rank, bar, rate, clicks and showings; the longest bar is the highest rate."""
    kept = rates[:limit]
    top = max((one.rate for one in kept), default=0.0)
    lines = []
    for one in kept:
        eighths = round(8 * width * one.rate / top) if top else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{one.rank:>4}  {bar:<{width}}  {one.rate:6.2%}  {one.clicked:,} of {one.shown:,}")
    return lines


def write_picture(diagnosis: Diagnosis, path: str | os.PathLike[str], propensities: Propensities | None = None) -> None:
    """Write the click rate by rank, with examination propensities where given, as its file name says.

    Parameters
    ----------
    diagnosis : Diagnosis
    path : path-like
        ``.png``, ``.svg``, or ``.html``: a page that needs nothing else, with all findings.
    propensities : Propensities, optional

    Raises
    ------
    ConfigError
        For another kind of file.
    MissingExtra
        Without matplotlib.
    """
    target = Path(path)
    kind = picture_kind(target, FORMATS)
    image = _drawn(diagnosis.rates, propensities, "svg" if kind == ".html" else kind[1:])
    with replacing(target) as file:
        file.write(_page(diagnosis, image.decode("utf-8")).encode("utf-8") if kind == ".html" else image)


def _drawn(rates: Sequence[RankRate], propensities: Propensities | None, kind: str) -> bytes:
    with new_figure(8, 4, extra="clicks", style={"svg.fonttype": "none"}) as figure:
        axes = figure.add_subplot()
        ranks = [one.rank for one in rates]
        axes.bar(ranks, [100 * one.rate for one in rates], color="#0969da", label="clicks / showings")
        axes.set_xlabel("rank")
        axes.set_ylabel("click rate, %")
        axes.set_title("Click rate by rank, robots left out")
        if propensities is not None and rates:
            shown = propensities.by_rank[: len(rates)]
            scale = 100 * rates[0].rate / shown[0]
            axes.plot(
                range(1, len(shown) + 1), [scale * p for p in shown], "o-", color="#cf222e",
                label=f"examination ({propensities.method}), at the height of rank 1",
            )  # fmt: skip
        if rates:
            axes.legend()
        return picture_bytes(figure, kind, dpi=120)


def _page(diagnosis: Diagnosis, svg: str) -> str:
    items = "".join(
        f'<li><b style="color:{_COLOURS[one.severity]}">{one.severity}</b> {html.escape(one.sentence)}</li>'
        for one in diagnosis.findings
    )
    rows = "".join(
        f"<tr><td>{one.rank}</td><td>{one.shown:,}</td><td>{one.clicked:,}</td><td>{one.rate:.2%}</td></tr>"
        for one in diagnosis.rates
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Click log</title><style>{_STYLE}</style>'
        f"</head><body><h1>Click log: {diagnosis.severity}</h1><ul>{items}</ul><h2>Click rate by rank</h2>"
        f"{svg[svg.index('<svg') :]}<table><tr><th>rank</th><th>shown</th><th>clicked</th><th>rate</th></tr>{rows}"
        f"</table></body></html>\n"
    )
