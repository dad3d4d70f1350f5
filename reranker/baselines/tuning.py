"""Settings of the baselines, searched on queries whose relevant documents are known (training or validation)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from reranker.baselines.bm25 import QUERY_TF, Bm25Settings
from reranker.baselines.corpus import LexicalCorpus, LexicalQueries, Rows
from reranker.baselines.tfidf import TfIdfSettings
from reranker.evaluation.protocols import RankingTask, draw_tuples
from reranker.evaluation.ranking import evaluate
from reranker.evaluation.scorers import InnerProducts

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
