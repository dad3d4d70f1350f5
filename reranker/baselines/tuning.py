"""Baselines by name, with settings searched on queries whose relevant documents are known (training or validation)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from reranker.baselines.lexical import (
    BM25_FIELD_WEIGHTS,
    BM25_GRID,
    FIELD_WEIGHTS,
    QUERY_WEIGHTS,
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

BASELINES: dict[str, str] = {
    "tfidf": "tf-idf cosine",
    "bm25": "BM25 over the weighted fields",
    "lsi:K": "latent semantic indexing with K dimensions, mixed with tf-idf",
}
"""Names that `--baselines` knows."""
TENTHS: tuple[float, ...] = tuple(step / 10 for step in range(11))
"""0, 0.1, ..., 1."""
MAX_QUERIES = 500
MAX_DOCUMENTS = 20_000
_MAX_PASSES = 2
_DEPTH = 200  # a relevant document further down adds less than 1/200 to its query's AP, in every setting alike

Settings = TypeVar("Settings", TfIdfSettings, Bm25Settings, LsiSettings)


@dataclass(frozen=True)
class LexicalTask:
    """A ranking task with its queries as word counts: what a baseline is tuned or evaluated on.

    ``documents`` are the rows of the corpus of the task's pool, (n,) int64.
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
        task, rows, columns = self.task.sample(rng, max_queries, max_documents)
        return LexicalTask(task, tuple(field[rows] for field in self.queries), self.documents[columns])

    def mean_ap(self, scorer: InnerProducts) -> float:
        """Return the mean average precision of a scorer."""
        no_tuples = draw_tuples(self.task, np.random.default_rng(0), n_tuples=0)
        return evaluate(self.task, scorer, no_tuples, measures=("AP",), depth=_DEPTH).mean("AP")


def coordinate_search(
    objective: Callable[[Mapping[str, Any]], float], grid: Mapping[str, Sequence[Any]], start: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """Return the best point found by searching one name of the grid at a time, and its value.

    Each of at most two passes tries all values of each name with the others held at their best, in the order of the
    grid; the search ends when a pass changes nothing. Among equals the earlier one stays. No point is computed twice.

    The start is tried, too, and a bigger value of the objective is better.
    """
    values: dict[tuple[Any, ...], float] = {}

    def value_of(point: Mapping[str, Any]) -> float:
        key = tuple(point[name] for name in grid)
        if key not in values:
            values[key] = objective(point)
        return values[key]

    best = dict(start)
    for _ in range(_MAX_PASSES):
        before = dict(best)
        for name, candidates in grid.items():
            for candidate in candidates:
                point = {**best, name: candidate}
                if value_of(point) > value_of(best):
                    best = point
        if best == before:
            break
    return best, value_of(best)


def tune_settings(
    scorer_of: Callable[[LexicalQueries, Rows, Settings], InnerProducts],
    data: LexicalTask | None,
    start: Settings,
    grid: Mapping[str, Sequence[Any]],
) -> tuple[Settings, float | None]:
    """Return the settings with the highest mean average precision found, and that value.

    Names of the grid are settings, and ``d0``, ``d1``, ... and ``q0``, ... for the weights of fields in documents and
    queries. Without queries to tune on, the start is returned with None.
    """
    if data is None:
        return start, None

    def objective(point: Mapping[str, Any]) -> float:
        return data.mean_ap(scorer_of(data.queries, data.documents, _with_point(start, point)))

    best, value = coordinate_search(objective, grid, {name: _value(start, name) for name in grid})
    return _with_point(start, best), value


def _weights_grid(
    corpus: LexicalCorpus, data: LexicalTask | None, document_weights: Sequence[float]
) -> dict[str, Sequence[Any]]:
    """Return the grid of field weights; that of the field with the most words is always 1 and left out."""
    others = [field for field in range(len(corpus.fields)) if field != corpus.main_field]
    grid: dict[str, Sequence[Any]] = {f"d{field}": document_weights for field in others}
    if data is not None and len(data.queries) > 1:
        grid |= {f"q{field}": QUERY_WEIGHTS for field in others}
    return grid


_WEIGHTS = {"d": "document_weights", "q": "query_weights"}


def _is_weight(name: str) -> bool:
    return name[0] in _WEIGHTS and name[1:].isdigit()


def _value(settings: Any, name: str) -> Any:
    """Return what a setting is now under its name in the grid."""
    if _is_weight(name):
        return getattr(settings, _WEIGHTS[name[0]])[int(name[1:])]
    return getattr(settings, name)


def _with_point(settings: Settings, point: Mapping[str, Any]) -> Settings:
    """Return the settings with the values of a grid point."""
    changes: dict[str, Any] = {}
    for name, value in point.items():
        if _is_weight(name):
            weights = _WEIGHTS[name[0]]
            changes.setdefault(weights, list(getattr(settings, weights)))[int(name[1:])] = float(value)
        else:
            changes[name] = value
    changes |= {name: tuple(new) for name, new in changes.items() if isinstance(new, list)}
    return replace(settings, **changes)


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline ready to score queries against rows of the pool's documents in the corpus.

    ``settings`` are what it was set to, for the report, and ``tuned_ap`` their mean average precision on the tuning
    queries; None where nothing was tuned.
    """

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
    progress: Callable[[str], None] | None = None,
) -> dict[str, FittedBaseline]:
    """Return the named baselines, tuned on the tuning queries.

    Field weights, k1, b and mixtures are tuned on a sample of at most 500 queries; without any, every field weighs 1,
    k1 = 1.2, b = .75 and alpha = 1/2. ``rng`` draws the sample and the start of LSI; ``progress`` receives the name of
    each baseline before it is fitted.
    """
    data = None if tuning is None else tuning.sample(rng)
    ones = tuple(1.0 for _ in corpus.fields)

    @cache
    def tuned_tfidf() -> tuple[TfIdfBaseline, TfIdfSettings, float | None]:
        baseline = TfIdfBaseline(corpus)
        grid = _weights_grid(corpus, data, FIELD_WEIGHTS)
        return baseline, *tune_settings(baseline.scorer, data, TfIdfSettings(ones, ones), grid)

    def fitted(name: str) -> FittedBaseline:
        kind, _, n_dimensions = name.partition(":")
        if kind == "tfidf":
            tfidf, weights, value = tuned_tfidf()
            return FittedBaseline(asdict(weights), value, partial(tfidf.scorer, settings=weights))
        if kind == "bm25":
            bm25 = Bm25Baseline(corpus)
            grid = {**_weights_grid(corpus, data, BM25_FIELD_WEIGHTS), **BM25_GRID}
            best, value = tune_settings(bm25.scorer, data, Bm25Settings(ones, ones), grid)
            return FittedBaseline(asdict(best), value, partial(bm25.scorer, settings=best))
        tfidf, weights, _ = tuned_tfidf()
        lsi = LsiBaseline(tfidf, weights.document_weights, int(n_dimensions), rng)
        mixture, value = tune_settings(lsi.scorer, data, LsiSettings(weights), {"alpha": TENTHS})
        report = {"n_dimensions": int(n_dimensions), **asdict(mixture)}
        return FittedBaseline(report, value, partial(lsi.scorer, settings=mixture))

    baselines = {}
    for name in names:
        if progress is not None:
            progress(name)
        baselines[name] = fitted(name)
    return baselines
