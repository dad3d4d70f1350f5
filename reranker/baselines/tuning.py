"""Settings of the baselines, searched on queries whose relevant documents are known (training or validation).

One setting of a method chosen by trying values on a development set (lambda, alpha, beta, weights).

Baselines by name: fitted to a corpus, tuned where there is something to tune on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from reranker.baselines.lexical import (
    QUERY_TF,
    Bm25Baseline,
    Bm25Settings,
    LexicalCorpus,
    LexicalQueries,
    LsiBaseline,
    LsiSettings,
    Rows,
    TfIdfBaseline,
    TfIdfSettings,
)
from reranker.errors import ConfigError
from reranker.evaluation.protocols import RankingTask, draw_tuples
from reranker.evaluation.ranking import InnerProducts, evaluate

FIELD_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
QUERY_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
BM25_FIELD_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
BM25_GRID: Mapping[str, Sequence[Any]] = {
    "k1": (0.6, 1.2, 2.4, 5.0, 10.0, 20.0, 40.0),
    "b": (0.0, 0.25, 0.5, 0.75, 1.0),
    "query_tf": QUERY_TF,
}
MAX_QUERIES = 500
MAX_DOCUMENTS = 20_000
_MAX_PASSES = 2
_DEPTH = 200  # a relevant document further down adds less than 1/200 to its query's AP, in every setting alike

Settings = TypeVar("Settings", TfIdfSettings, Bm25Settings)


@dataclass(frozen=True)
class LexicalTask:
    """A ranking task with its queries as word counts: what a baseline is tuned or evaluated on.

    Parameters
    ----------
    task : RankingTask
        Their judgements and pool.
    queries : LexicalQueries
        One a query of the task, in its order.
    documents : (n,) int64
        Row of the corpus of each document of the task's pool.
    """

    task: RankingTask
    queries: LexicalQueries
    documents: Rows

    def sample(
        self, rng: np.random.Generator, max_queries: int = MAX_QUERIES, max_documents: int = MAX_DOCUMENTS
    ) -> LexicalTask:
        """Return some of the queries, and of a large pool their judged documents with a random rest.

        What is chosen is chosen for all baselines and all settings alike.
        """
        task, queries, documents = self.task, self.queries, self.documents
        if len(task.query_ids) > max_queries:
            rows = np.sort(rng.choice(len(task.query_ids), max_queries, replace=False))
            task, queries = task.rows(rows), queries.rows(rows)
        if len(task.document_ids) > max_documents:
            judged = np.unique(task.grades.indices).astype(np.int64)
            others = np.setdiff1d(np.arange(len(task.document_ids)), judged, assume_unique=True)
            n_others = min(len(others), max(0, max_documents - len(judged)))
            columns = np.sort(np.concatenate([judged, rng.choice(others, n_others, replace=False)]))
            task, documents = task.columns(columns), documents[columns]
        return LexicalTask(task, queries, documents)

    def mean_ap(self, scorer: InnerProducts) -> float:
        """Return the mean average precision of a scorer."""
        nothing = draw_tuples(self.task, np.random.default_rng(0), n_tuples=0)
        return evaluate(self.task, scorer, nothing, measures=("AP",), depth=_DEPTH).mean("AP")


def coordinate_search(
    objective: Callable[[Mapping[str, Any]], float],
    grid: Mapping[str, Sequence[Any]],
    start: Mapping[str, Any],
    max_passes: int = _MAX_PASSES,
) -> tuple[dict[str, Any], float]:
    """Return the best point found by searching one name of the grid at a time, and its value.

    Each pass tries all values of each name with the others held at their best, in the order of the grid; it ends when
    a pass changes nothing. Among equals the earlier one stays. No point is computed twice.

    Parameters
    ----------
    objective : callable
        Point -> value, bigger is better.
    grid : mapping of name to values
        What to try.
    start : mapping of name to value
        A value for each name; it is tried, too.
    max_passes : int
        At most so many passes.
    """
    values: dict[tuple[Any, ...], float] = {}

    def value_of(point: Mapping[str, Any]) -> float:
        key = tuple(point[name] for name in grid)
        if key not in values:
            values[key] = objective(point)
        return values[key]

    best = dict(start)
    for _ in range(max_passes):
        before = dict(best)
        for name, candidates in grid.items():
            for candidate in candidates:
                point = {**best, name: candidate}
                if value_of(point) > value_of(best):
                    best = point
        if best == before:
            break
    return best, value_of(best)


def weights_grid(
    corpus: LexicalCorpus, documents_as_queries: bool, document_weights: Sequence[float]
) -> dict[str, Sequence[float]]:
    """Return the grid of field weights: ``d0``, ``d1``, ... of documents and ``q0``, ... of queries.

    The field with the most words is left out: its weight is 1.
    """
    others = [field for field in range(len(corpus.fields)) if field != corpus.main_field]
    grid: dict[str, Sequence[float]] = {f"d{field}": document_weights for field in others}
    if documents_as_queries:
        grid |= {f"q{field}": QUERY_WEIGHTS for field in others}
    return grid


def with_point(settings: Settings, point: Mapping[str, Any]) -> Settings:
    """Return the settings with the values of a grid point."""
    weights = {"d": list(settings.document_weights), "q": list(settings.query_weights)}
    changes: dict[str, Any] = {}
    for name, value in point.items():
        if name[0] in weights and name[1:].isdigit():
            weights[name[0]][int(name[1:])] = float(value)
        else:
            changes[name] = value
    return replace(settings, document_weights=tuple(weights["d"]), query_weights=tuple(weights["q"]), **changes)


def tune_settings(
    scorer_of: Callable[[LexicalQueries, Rows, Settings], InnerProducts],
    corpus: LexicalCorpus,
    data: LexicalTask,
    start: Settings,
    grid: Mapping[str, Sequence[Any]],
) -> tuple[Settings, float]:
    """Return the settings with the highest mean average precision found, and that value.

    Parameters
    ----------
    scorer_of : callable
        The baseline's ``scorer``.
    corpus : LexicalCorpus
        Its corpus.
    data : LexicalTask
        Queries to tune on.
    start : settings
        Where the search begins.
    grid : mapping of name to values
        Searched besides the field weights.
    """
    as_documents = len(data.queries.fields) > 1
    full = {
        **weights_grid(corpus, as_documents, BM25_FIELD_WEIGHTS if isinstance(start, Bm25Settings) else FIELD_WEIGHTS),
        **grid,
    }
    first: dict[str, Any] = {name: _value(start, name) for name in full}

    def objective(point: Mapping[str, Any]) -> float:
        return data.mean_ap(scorer_of(data.queries, data.documents, with_point(start, point)))

    best, value = coordinate_search(objective, full, first)
    return with_point(start, best), value


def _value(settings: TfIdfSettings | Bm25Settings, name: str) -> float | str:
    """Return what a setting is now under its name in the grid."""
    if name[0] in "dq" and name[1:].isdigit():
        weights = settings.document_weights if name[0] == "d" else settings.query_weights
        return weights[int(name[1:])]
    found: float | str = getattr(settings, name)
    return found


TENTHS: tuple[float, ...] = tuple(step / 10 for step in range(11))
"""0, 0.1, ..., 1."""


BASELINES: dict[str, str] = {
    "tfidf": "tf-idf cosine",
    "bm25": "BM25 over the weighted fields",
    "lsi:K": "latent semantic indexing with K dimensions, mixed with tf-idf",
}
"""Names that `--baselines` knows."""


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline ready to score.

    Parameters
    ----------
    name : str
        As asked for: ``tfidf``, ``bm25``, ``lsi:200``.
    settings : mapping
        What it was set to, for the report.
    tuned_ap : float or None
        Mean average precision of these settings on the tuning queries; None where nothing was tuned.
    scorer : callable
        Queries, rows of the pool's documents in the corpus -> scores.
    """

    name: str
    settings: Mapping[str, Any]
    tuned_ap: float | None
    scorer: Callable[[LexicalQueries, Rows], InnerProducts]


def parse_baselines(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once.

    Raises
    ------
    ConfigError
        For a name that is not one of `BASELINES`.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        kind, colon, dimensions = name.partition(":")
        good = name in ("tfidf", "bm25") or (kind == "lsi" and colon and dimensions.isdecimal() and int(dimensions) > 0)
        if not good:
            raise ConfigError(f"baseline {name!r} is not known: choose of {', '.join(BASELINES)} with K a number > 0")
    return names


def fit_baselines(
    names: Sequence[str],
    corpus: LexicalCorpus,
    tuning: LexicalTask | None,
    rng: np.random.Generator,
    field_weights: Sequence[float] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, FittedBaseline]:
    """Return the named baselines, tuned on the tuning queries.

    Parameters
    ----------
    names : sequence of str
        From `parse_baselines`.
    corpus : LexicalCorpus
        All documents.
    tuning : LexicalTask or None
        Queries to tune field weights, k1, b and mixtures on (a sample of at most 500 is used). None: field weights
        as given, k1 = 1.2, b = .75, alpha = 1/2.
    rng : Generator
        Draws the tuning sample and the start of LSI.
    field_weights : sequence of float, optional
        Where the search begins; 1 for every field if not given.
    progress : callable, optional
        Receives the name of each baseline before it is fitted.
    """
    data = None if tuning is None else tuning.sample(rng)
    start = tuple(1.0 for _ in corpus.fields) if field_weights is None else tuple(map(float, field_weights))
    fitter = _Fitter(corpus, data, start, rng)
    fitted = {}
    for name in names:
        if progress is not None:
            progress(name)
        fitted[name] = fitter.fit(name)
    return fitted


class _Fitter:
    """Fits baselines one after the other; TF-IDF is tuned once, for itself and for LSI."""

    def __init__(
        self, corpus: LexicalCorpus, data: LexicalTask | None, start: tuple[float, ...], rng: np.random.Generator
    ) -> None:
        self.corpus, self.data, self.start, self.rng = corpus, data, start, rng
        self._tfidf: tuple[TfIdfBaseline, TfIdfSettings, float | None] | None = None

    def fit(self, name: str) -> FittedBaseline:
        """Return the baseline of a name."""
        if name == "tfidf":
            return self._fit_tfidf(name)
        return self._fit_bm25(name) if name == "bm25" else self._fit_lsi(name)

    def _fit_tfidf(self, name: str) -> FittedBaseline:
        baseline, settings, value = self._tuned_tfidf()
        return FittedBaseline(name, asdict(settings), value, lambda q, d: baseline.scorer(q, d, settings))

    def _tuned_tfidf(self) -> tuple[TfIdfBaseline, TfIdfSettings, float | None]:
        if self._tfidf is None:
            baseline = TfIdfBaseline(self.corpus)
            settings, value = TfIdfSettings(self.start, self.start), None
            if self.data is not None:
                settings, value = tune_settings(baseline.scorer, self.corpus, self.data, settings, {})
            self._tfidf = baseline, settings, value
        return self._tfidf

    def _fit_bm25(self, name: str) -> FittedBaseline:
        baseline, value = Bm25Baseline(self.corpus), None
        settings = Bm25Settings(self.start, self.start)
        if self.data is not None:
            settings, value = tune_settings(baseline.scorer, self.corpus, self.data, settings, BM25_GRID)
        return FittedBaseline(name, asdict(settings), value, lambda q, d: baseline.scorer(q, d, settings))

    def _fit_lsi(self, name: str) -> FittedBaseline:
        tfidf, weights, _ = self._tuned_tfidf()
        n_dimensions = int(name.partition(":")[2])
        baseline = LsiBaseline(tfidf, weights.document_weights, n_dimensions, self.rng)
        settings, value = LsiSettings(weights), None
        data = self.data
        if data is not None:

            def objective(point: Mapping[str, Any]) -> float:
                return data.mean_ap(baseline.scorer(data.queries, data.documents, replace(settings, **point)))

            best, value = coordinate_search(objective, {"alpha": TENTHS}, {"alpha": settings.alpha}, max_passes=1)
            settings = replace(settings, **best)
        report = {"n_dimensions": n_dimensions, **asdict(settings)}
        return FittedBaseline(name, report, value, lambda q, d: baseline.scorer(q, d, settings))
