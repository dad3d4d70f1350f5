"""Studies of clicked collections: clicks at rank 1 as links, and pairs of a strategy as preferences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.click_logs import Clicked, Stated, stated_pairs
from papers.judged import N_TUPLES, Split, folds
from papers.study import Preferences, Study, Trial
from reranker.evaluation.protocols import RankingTask, TestTuples, draw_tuples

Ids = npt.NDArray[np.int64]
POSITION_ONE = "ssi-position-one"


def topics_of(data: Clicked) -> dict[str, str]:
    """Return the topic of each query id."""
    made = data.collection
    return dict(zip(made.query_ids, made.group_of().tolist(), strict=True))


def preference_studies(data: Clicked, strategy: str, n_folds: int, seed: int) -> Iterator[Study]:
    """Yield a study a fold over topics: pairs of the training topics' clicks, judgements to tune and to test on."""
    stated = stated_pairs(data.shown, strategy)
    for name, split in folds(data.collection, n_folds, seed):
        study = data.collection.study(f"{strategy}, {name}", seed, split)
        preferences = data.preferences(stated, split.train)
        nothing = sp.csr_matrix(study.relevant.shape, dtype=np.float32)  # type: ignore[arg-type]
        yield replace(study, relevant=nothing, judged=None, preferences=preferences)


def matching_studies(data: Clicked, kind: str, n_folds: int, seed: int) -> Iterator[Study]:
    """Yield a study a fold over topics of T8.

    ``random``: a document clicked at rank 1 belongs to its query, and negatives are any others. ``skipped``: training
    and test tuples are the pairs of SSI's rule, a document at rank 1 over or under those of its list.
    """
    clicked = _clicked_first(data) if kind == "random" else _stated_better(data, stated_pairs(data.shown, POSITION_ONE))
    for name, split in folds(data.collection, n_folds, seed):
        has = np.flatnonzero(np.diff(clicked.indptr) > 0)
        parts = Split(*(np.intersect1d(part, has) for part in (split.train, split.valid, split.test)))
        if min(map(len, (parts.train, parts.valid, parts.test))) == 0:
            continue
        yield _matching(data, kind, f"{kind}, {name}", seed, parts, clicked)


def _matching(data: Clicked, kind: str, name: str, seed: int, split: Split, clicked: sp.csr_matrix) -> Study:
    made = data.collection
    stated = stated_pairs(data.shown, POSITION_ONE) if kind == "skipped" else None
    trials = [_trial(data, rows, seed, clicked, stated) for rows in (split.valid, split.test)]
    return Study(
        name=name,
        seed=seed,
        documents=made.documents,
        queries=made.queries.take(split.train),
        relevant=clicked[split.train],
        own=np.full(len(split.train), -1, dtype=np.int64),
        valid=trials[0],
        test=trials[1],
        preferences=None if stated is None else data.preferences(stated, split.train),
    )


def _trial(data: Clicked, rows: Ids, seed: int, clicked: sp.csr_matrix, stated: Stated | None) -> Trial:
    """Return the trial of some queries; with stated pairs those are its tuples, else random ones are drawn."""
    made = data.collection
    grades = clicked[rows]
    names = tuple(made.query_ids[row] for row in rows)
    task = RankingTask(names, made.document_ids, grades, sp.csr_matrix(np.zeros(grades.shape, dtype=bool)))
    if stated is None:
        tuples = draw_tuples(task, np.random.default_rng([seed, 1]), N_TUPLES)
    else:
        tuples = _tuples(data.preferences(stated, rows))
    return Trial(made.queries.take(rows), np.arange(len(made.document_ids)), task, tuples)


def _tuples(pairs: Preferences) -> TestTuples:
    """Return each pair once, by query."""
    order = np.argsort(pairs.query, kind="stable")
    return TestTuples(pairs.query[order], pairs.better[order], pairs.worse[order])


def _clicked_first(data: Clicked) -> sp.csr_matrix:
    """Return 1 where a document was clicked at rank 1 for a query, (n_queries, n_documents) float32."""
    rows = data.query_rows()
    first = [
        (rows[" ".join(one.query.split())], one.shown[0].document)
        for one in data.shown
        if " ".join(one.query.split()) in rows and one.shown and one.shown[0].rank == 1 and one.shown[0].clicked
    ]
    return _links(data, first)


def _stated_better(data: Clicked, stated: Stated) -> sp.csr_matrix:
    """Return 1 where a document is stated to be better than some other for a query."""
    rows = data.query_rows()
    known = set(data.collection.document_ids)
    return _links(data, [(rows[query], better) for query, better, worse in stated if query in rows and worse in known])


def _links(data: Clicked, pairs: list[tuple[int, str]]) -> sp.csr_matrix:
    """Return 1 for each pair of a known document."""
    made = data.collection
    column = {one: number for number, one in enumerate(made.document_ids)}
    known = sorted({(row, column[document]) for row, document in pairs if document in column})
    table = np.array(known, dtype=np.int64).reshape(-1, 2)
    shape = (len(made.query_ids), len(made.document_ids))
    links = sp.csr_matrix((np.ones(len(table), np.float32), (table[:, 0], table[:, 1])), shape=shape)
    links.sort_indices()
    return links
