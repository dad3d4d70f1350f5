"""The report of a retraining: one HTML file that needs neither network nor scripts, with pictures as inline SVG."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reranker.arrays import Float64, Int32
from reranker.artifacts import RankingModel
from reranker.engines.base import Engine
from reranker.errors import GateRefused, MissingExtra
from reranker.figures import STYLE, new_figure, picture_bytes
from reranker.files import write_file
from reranker.models.scorers import pair_weights
from reranker.retrain.comparison import LIVE, MAX_IDS, NEW, Comparison, RankedList
from reranker.retrain.gate import Measured, Verdict
from reranker.retrain.learning import History
from reranker.text.view import TextView
from reranker.training import TrainingReport

BLUE, RED, GREY, LIGHT = "#2a5d9f", "#b3452c", "#667080", "#c9d2de"
_WIDTH, _HEIGHT = 5.4, 2.7
MAX_RANKS = 100
"""Ranks drawn: one event may state a position of a million, and deeper ranks have no propensity of their own."""


def _chart(name: str, height: Callable[..., float] = lambda *_: _HEIGHT) -> Callable[..., Callable[..., str]]:
    """Make a picture of a function that draws on axes: its SVG, with ids that differ from those of other pictures."""

    def decorated(draw: Callable[..., None]) -> Callable[..., str]:
        @wraps(draw)
        def picture(*values: Any) -> str:
            with new_figure(_WIDTH, height(*values), extra="clicks", style=STYLE, salt=name) as figure:
                draw(figure.subplots(), *values)
                return _svg(figure, name)

        return picture

    return decorated


def _svg(figure: Any, name: str) -> str:
    """Return the picture as an element for HTML: no prologue, no metadata, as wide as its place, ids of its own."""
    text = picture_bytes(figure, "svg", transparent=True).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, end, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", head + end + rest).strip()


def _whole_numbers(axes: Any) -> None:
    """Put marks of the lower axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


@_chart("learning")
def learning_curve(
    axes: Any, epochs: Sequence[int], values: Sequence[float | None], violating: Sequence[float]
) -> None:
    """Draw validation MAP and the share of violating steps by epoch."""
    known = [(e, v) for e, v in zip(epochs, values, strict=True) if v is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=BLUE, marker="o", markersize=4, label="validation MAP")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation MAP", color=BLUE)
    _whole_numbers(axes)
    other = axes.twinx()
    other.grid(visible=False)
    other.spines["top"].set_visible(False)
    other.plot(epochs, violating, color=RED, marker="s", markersize=3, linestyle="--")
    other.set_ylabel("steps that change the model", color=RED)
    other.set_ylim(bottom=0)


@_chart("clicks")
def click_rates(axes: Any, shown: Sequence[int], clicked: Sequence[int], propensities: Sequence[float]) -> None:
    """Draw clicks / showings of the first ranks as bars, and the propensities used as a line."""
    ranks = np.arange(1, min(len(shown), MAX_RANKS) + 1)
    rates = np.asarray(clicked[:MAX_RANKS], dtype=float) / np.maximum(np.asarray(shown[:MAX_RANKS], dtype=float), 1)
    axes.bar(ranks, rates, color=LIGHT, edgecolor=BLUE, linewidth=0.8)
    axes.set_xlabel("rank")
    axes.set_ylabel("click rate", color=BLUE)
    axes.grid(visible=False, axis="x")
    _whole_numbers(axes)
    if len(propensities):
        filled = [propensities[min(place, len(propensities) - 1)] for place in range(len(ranks))]
        other = axes.twinx()
        other.grid(visible=False)
        other.plot(ranks, filled, color=RED, marker="o", markersize=3)
        other.set_ylabel("propensity used", color=RED)
        other.set_ylim(bottom=0)


@_chart("sizes")
def size_study(axes: Any, sizes: Sequence[int], values: Sequence[float], bounds: Sequence[tuple[float, float]]) -> None:
    """Draw the difference to the live model, with its bounds, by the number of preferences learned from."""
    reach = np.array([[v - low, high - v] for v, (low, high) in zip(values, bounds, strict=True)]).T
    axes.errorbar(sizes, values, yerr=reach, color=BLUE, marker="o", markersize=4, capsize=3, linewidth=1.2)
    axes.axhline(0, color=RED, linestyle="--", linewidth=1)
    axes.annotate("live model", (0.99, 0), xycoords=("axes fraction", "data"), color=RED, ha="right", va="bottom")
    axes.set_xlabel("preferences learned from")
    axes.set_ylabel("difference in nDCG")
    axes.set_xlim(left=0)


@_chart("differences")
def differences(axes: Any, values: Sequence[float]) -> None:
    """Draw the differences of all queries, largest loss first, as one profile."""
    ordered = np.sort(np.asarray(values, dtype=float))
    places = np.arange(len(ordered))
    axes.fill_between(places, ordered, where=ordered <= 0, color=RED, alpha=0.75, step="mid", linewidth=0)
    axes.fill_between(places, ordered, where=ordered >= 0, color=BLUE, alpha=0.75, step="mid", linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("queries, from the largest loss to the largest gain")
    axes.set_ylabel("difference in nDCG")
    axes.grid(visible=False, axis="x")


@_chart("intervals", height=lambda rows, _margin: 0.9 + 0.42 * len(rows))
def intervals(axes: Any, rows: Sequence[tuple[str, float, float, float]], margin: float) -> None:
    """Draw differences (name, estimate, lower, upper) with their bounds, one below the other."""
    for place, (_, estimate, lower, upper) in enumerate(rows):
        colour = BLUE if lower > 0 else RED if upper < 0 else GREY
        axes.plot([lower, upper], [place, place], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.5)
        axes.plot([estimate], [place], color=colour, marker="o", markersize=6)
    axes.axvline(0, color=GREY, linewidth=0.8)
    if margin:
        axes.axvline(margin, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("new model - live model")
    axes.grid(visible=False, axis="y")


MAX_QUERY_WORDS = 1_000
MAX_DOCUMENT_WORDS = 20_000
MIN_QUERIES = 2
MIN_DOCUMENTS = 3
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class WordPair:
    """How a model relates a word of a query to another word of a document.

    ``weight`` and ``before`` are U_i . V_j in the new model and in the other one (0 where it does not know a word).
    """

    query_word: str
    document_word: str
    weight: float
    before: float


def strongest_pairs(
    model: RankingModel, before: RankingModel | None, queries: Iterable[str], n: int = 20
) -> tuple[list[WordPair], list[WordPair]]:
    """Return the ``n`` pairs of largest weight, and the ``n`` whose weight changed most, both largest first.

    Looked at are the 1,000 most frequent words of the queries (of those in at least two of them, if there are any)
    and the 20,000 most frequent words of the documents that stand in at least three. A word with itself is left out.

    Where ``before`` is None, nothing is known of the words there.
    """
    words = model.encode_queries(sorted(set(queries))).learned_rows.indices.tolist()
    counts = {word: n for word, n in Counter(words).items() if word < len(model.U)}
    repeated = {word: count for word, count in counts.items() if count >= MIN_QUERIES} or counts
    chosen = sorted(repeated, key=lambda word: (-repeated[word], word))[:MAX_QUERY_WORDS]
    frequent = model.encoder.document_vocabulary.document_frequency >= MIN_DOCUMENTS
    d_ids = np.flatnonzero(frequent[: min(MAX_DOCUMENT_WORDS, len(model.encoder.V))]).astype(np.int32)
    if not chosen or not len(d_ids) or n < 1:
        return [], []
    q_ids = np.array(sorted(chosen), dtype=np.int32)
    weights, changes = _Largest(n), _Largest(n)
    query_words, document_words = model.query_vocabulary.words, model.encoder.document_vocabulary.words
    if before is not None:  # the same words in the other model's vocabulary
        before_q = before.query_vocabulary.ids([query_words[i] for i in q_ids.tolist()])
        before_d = before.encoder.document_vocabulary.ids([document_words[i] for i in d_ids.tolist()])
    for first in range(0, len(q_ids), _BLOCK):
        block = q_ids[first : first + _BLOCK]
        new = pair_weights(model.U, model.encoder.V, block, d_ids)
        old = np.zeros_like(new)
        if before is not None:
            old = pair_weights(before.U, before.encoder.V, before_q[first : first + len(block)], before_d)
        same = block[:, None] == d_ids[None, :]
        weights.offer(np.where(same, -np.inf, new), new, old, block, d_ids)
        changes.offer(np.where(same, -np.inf, np.abs(new - old)), new, old, block, d_ids)
    return weights.pairs(model), changes.pairs(model)


class _Largest:
    """The largest offers so far."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._kept: list[tuple[float, int, int, float, float]] = []

    def offer(self, key: Float64, new: Float64, old: Float64, q_ids: Int32, d_ids: Int32) -> None:
        flat = key.ravel()
        places = np.argpartition(-flat, min(self._n, len(flat)) - 1)[: self._n]
        for place in places.tolist():
            i, j = divmod(place, len(d_ids))
            if flat[place] > 0:
                value = (float(flat[place]), int(q_ids[i]), int(d_ids[j]), float(new[i, j]), float(old[i, j]))
                self._kept.append(value)
        self._kept.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
        del self._kept[self._n :]

    def pairs(self, model: RankingModel) -> list[WordPair]:
        queries, documents = model.query_vocabulary.words, model.encoder.document_vocabulary.words
        return [WordPair(queries[i], documents[j], new, old) for _, i, j, new, old in self._kept]


Outcome = Literal["promoted", "refused", "would promote"]


@dataclass(frozen=True)
class Data:
    """What of the log was used."""

    learned: int
    judged: int
    """Impressions older than the newest slice, and those of the newest slice with a click that the gate used."""
    undated: int
    """Impressions without a time; learned from."""
    cutoff: int
    """Where the newest slice begins, milliseconds."""
    first: int
    last: int
    """Times of the first and the last dated impression, milliseconds."""
    people: int
    """Distinct users (or sessions) in the newest slice."""
    pairs: int
    """Preferences learned from."""
    other: int
    """Preferences of links and judgements that were mixed in."""
    documents: int
    dropped: Mapping[str, int]
    """What of the log, and of the preferences, was not used."""


@dataclass(frozen=True)
class RetrainResult:
    """How a retraining ended."""

    outcome: Outcome
    reason: str
    """Sentences of the gate."""
    index: str
    live_before: str | None
    live_after: str | None
    base: str
    candidate: str
    """Model ids."""
    encoder: str
    """Encoder id of the candidate."""
    model_path: Path
    """Where the candidate lies."""
    data: Data
    verdict: Mapping[str, Any]
    """The gate's, as JSON."""
    documents_written: int = 0
    """Updates of the index; 0 where the encoder stayed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of the command: 0, or that of a refusal."""
        return GateRefused.exit_code if self.outcome == "refused" else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        values = asdict(self)
        values["model_path"] = str(self.model_path)
        values["report"] = None if self.report is None else str(self.report)
        values["seconds"] = {step: round(value, 3) for step, value in self.seconds.items()}
        return values


MAX_LISTED = 12
"""Queries listed on either side."""
MAX_QUERY = 120
"""Characters shown of a query."""


@dataclass(frozen=True, slots=True)
class Example:
    """A query with the documents at the top of the live and of the new order, by title or id."""

    live: Sequence[str]
    new: Sequence[str]


@dataclass(frozen=True)
class Findings:
    """All that the report shows.

    ``engine`` is its spec without credentials, ``finished`` a UTC time (ISO 8601); ``examples`` are by query, and
    ``warnings`` of the doctor and of this run.
    """

    result: RetrainResult
    engine: str
    finished: str
    training: TrainingReport
    history: History
    comparison: Comparison
    examples: Mapping[str, Example] = field(default_factory=dict)
    strongest: Sequence[WordPair] = ()
    changed: Sequence[WordPair] = ()
    warnings: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_report(findings: Findings, path: Path) -> None:
    """Write the report over whatever is there, whole or not at all.

    Raises
    ------
    MissingExtra
        Where jinja2 or matplotlib is not installed.
    """
    write_file(path, render(findings).encode("utf-8"))


def render(findings: Findings) -> str:
    """Return the report as HTML."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", "clicks") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reranker.retrain"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "moment": _moment, "short": _short, "signed": _signed, "number": _number, "percent": _percent,
    }  # fmt: skip
    verdict = findings.comparison.verdict
    page: str = environment.get_template("report.html.j2").render(
        f=findings,
        r=findings.result,
        v=verdict,
        propensities=_propensities(findings),
        pictures=_pictures(findings),
        measured=_of_both(verdict),
        gains=[(change, findings.examples.get(change.query)) for change in verdict.winners[:MAX_LISTED]],
        losses=[(change, findings.examples.get(change.query)) for change in verdict.losers[:MAX_LISTED]],
    )
    return page


def _of_both(verdict: Verdict) -> list[Measured]:
    """Return the measures of the live and the new model, without those of a random order."""
    return [measure for measure in verdict.measured if "random" not in measure.name]


def _pictures(findings: Findings) -> dict[str, Any]:
    """Return the pictures as markup that is not escaped: their texts are ours or numbers."""
    from markupsafe import Markup

    history = findings.training.result.history
    measured = [
        (measure.name, measure.difference.estimate, measure.difference.lower, measure.difference.upper)
        for measure in _of_both(findings.comparison.verdict)
    ]
    study = findings.comparison.study
    differing = findings.comparison.differences
    made = {
        "clicks": click_rates(findings.history.shown, findings.history.clicked, _propensities(findings)),
        "learning": learning_curve(
            [line.number for line in history], [line.map for line in history], [line.violating for line in history]
        ) if history else "",
        "differences": differences(differing) if len(differing) else "",
        "intervals": intervals(measured, 0.0) if measured else "",
        "study": size_study(
            [point.preferences for point in study],
            [point.difference for point in study],
            [(point.lower, point.upper) for point in study],
        ) if study else "",
    }  # fmt: skip
    return {name: Markup(svg) for name, svg in made.items()}  # noqa: S704


def _propensities(findings: Findings) -> Sequence[float]:
    propensities = findings.history.propensities
    return () if propensities is None else propensities.by_rank


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _short(text: str | None) -> str:
    return _cut(text, MAX_QUERY) if text else "none"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _signed(value: float, digits: int = 4) -> str:
    # U+2212 is as wide as the plus sign.
    return f"{value:+.{digits}f}".replace("-", "\u2212")


def _number(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


TITLE_LENGTH = 64


def examples_of(engine: Engine, index: str, view: TextView, lists: Mapping[str, RankedList]) -> dict[str, Example]:
    """Return the first documents of both orders of some queries, by title; by id, too, where titles are the same."""
    tops = {query: (ranked.top(LIVE), ranked.top(NEW)) for query, ranked in lists.items()}
    titles = titles_of(engine, index, view, sorted({d for sides in tops.values() for side in sides for d in side}))
    often = Counter(titles.values())

    def named(document: str) -> str:
        title = titles.get(document, document)
        return f"{title} ({document})" if often[title] > 1 else title

    return {
        query: Example([named(document) for document in live], [named(document) for document in new])
        for query, (live, new) in tops.items()
    }


def titles_of(engine: Engine, index: str, view: TextView, documents: list[str]) -> dict[str, str]:
    """Return the first text of each document, cut to one line; its id where there is none."""
    titles: dict[str, str] = {}
    fields = [spec.path for spec in view.fields]
    for first in range(0, len(documents), MAX_IDS):
        part = documents[first : first + MAX_IDS]
        body = {"query": {"ids": {"values": part}}, "size": len(part), "_source": fields}
        for hit in engine.search(index, body).hits:
            text = next((text for text in view.texts(hit.source) if text.strip()), hit.id)
            titles[hit.id] = _cut(" ".join(text.split()), TITLE_LENGTH)
    return titles
