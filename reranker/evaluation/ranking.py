"""Full rankings in blocks of queries, in bounded memory: scores, the best documents, the measures, the rank loss.

Also TREC's files of rankings and judgements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64, Int32
from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation.measures import MEASURES, evaluate_ranking, standard_error
from reranker.evaluation.protocols import RankingTask, TestTuples
from reranker.text.rows import compact_columns, row_of

DEPTH = 1_000
"""Ranks kept of each ranking, as in TREC runs."""
_BLOCK_BYTES = 2**25


class BlockScorer(Protocol):
    """Anything that can score consecutive queries against every document of one pool."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and number of documents."""

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32, writable."""


@dataclass(frozen=True)
class InnerProducts:
    """Scores s(q, d) = u_q . v_d + a * (x_q . y_d), of dense vectors, sparse rows, or both.

    TF-IDF and BM25 are the sparse part alone, LSI and embeddings the dense part alone, the learned model
    (Uq).(Vd) + a q.d and mixtures both.

    `ShapeMismatch` if the parts do not fit each other; `InputError` if a value is not finite, or no part is given.
    """

    query_vectors: Float32 | None = None
    document_vectors: Float32 | None = None
    """u and v, (n_queries, N) and (n_documents, N) float32, or both None."""
    query_rows: sp.csr_matrix | None = None
    document_rows: sp.csr_matrix | None = None
    """x and y, with equally many columns, as many as they like (they are renumbered), or both None."""
    row_weight: float = 1.0
    """a."""
    shape: tuple[int, int] = field(init=False)
    _rows: sp.csr_matrix | None = field(init=False, repr=False)
    _postings: sp.csr_matrix | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shapes = set()
        if self.query_vectors is not None and self.document_vectors is not None:
            shapes.add((_checked(self.query_vectors, "query_vectors"), len(self.document_vectors)))
            _checked(self.document_vectors, "document_vectors")
            if self.query_vectors.shape[1] != self.document_vectors.shape[1]:
                raise ShapeMismatch(
                    f"query vectors have {self.query_vectors.shape[1]} dimensions and document vectors "
                    f"{self.document_vectors.shape[1]}: both must come from the same model"
                )
        rows = postings = None
        if self.query_rows is not None and self.document_rows is not None:
            shapes.add((self.query_rows.shape[0], self.document_rows.shape[0]))
            rows, documents = compact_columns(self.query_rows, self.document_rows)
            _checked(rows.data, "query_rows")
            _checked(documents.data, "document_rows")
            postings = documents.T.tocsr()
        if len(shapes) != 1:
            raise ShapeMismatch(
                f"vectors and rows must describe the same queries and documents, got (queries, documents) = "
                f"{sorted(shapes) or 'nothing'}: give vectors, rows, or both for the same ids"
            )
        object.__setattr__(self, "shape", shapes.pop())
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_postings", postings)

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32."""
        scores: Float32 | None = None
        if self.query_vectors is not None and self.document_vectors is not None:
            scores = np.asarray(self.query_vectors[start:stop] @ self.document_vectors.T, dtype=np.float32)
        if self._rows is not None and self._postings is not None:
            products = self._rows[start:stop] @ self._postings
            if scores is None:
                dense: Float32 = products.toarray()
                return dense if self.row_weight == 1.0 else dense * np.float32(self.row_weight)
            _add_sparse(scores, products, self.row_weight)
        if scores is None:
            raise ShapeMismatch("a scorer needs vectors or rows")
        return scores


def _add_sparse(scores: Float32, products: sp.csr_matrix, weight: float) -> None:
    """Add weight * products to the dense scores in place, a row at a time."""
    for row in range(scores.shape[0]):
        span = slice(products.indptr[row], products.indptr[row + 1])
        scores[row, products.indices[span]] += np.float32(weight) * products.data[span]


def _checked(values: Float32, name: str) -> int:
    """Return the number of rows; refuse values that are not finite (they cannot be ordered)."""
    if not np.isfinite(values).all():
        raise InputError(f"{name} holds NaN or infinity: scores must be finite to be ranked; train or encode again")
    return len(values)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best documents of consecutive queries."""

    first_query: int
    """Row number, in the task, of the first query."""
    documents: Int32
    """Document numbers by (-score, id), (n, depth) int32; -1 after the end of a shorter ranking."""
    scores: Float32
    """Their scores, (n, depth) float32; -inf after the end."""


@dataclass(frozen=True)
class SystemScores:
    """What one system reached, a value per query."""

    values: Mapping[str, Float64]
    """From the rankings, cut at `DEPTH`."""
    tuple_losses: Float64
    tuple_counts: Float64
    """Sum of the losses of the test tuples of each query (1 wrong order, 1/2 tie, 0 right order) from the full ranking,
    and the number of its tuples, (n_queries,) float64."""

    def mean(self, measure: str) -> float:
        """Return the mean over queries of a measure."""
        return float(self.values[measure].mean())

    def standard_error(self, measure: str) -> float:
        """Return the standard error of `mean`."""
        return standard_error(self.values[measure])

    def rank_loss(self) -> float:
        """Return the rank loss in per cent: the share of test tuples in the wrong order, ties counted half.

        Source: spec 4.2.
        """
        n_tuples = self.tuple_counts.sum()
        return float(100.0 * self.tuple_losses.sum() / n_tuples) if n_tuples else 0.0

    def rank_loss_standard_error(self) -> float:
        """Return the standard error of `rank_loss` in per cent.

        Tuples of one query are not independent, so the error is that of the ratio of two sums over queries:
        sqrt(Q / (Q - 1) * sum_q (l_q - L n_q)^2) / sum_q n_q, with l_q losses and n_q tuples of query q.
        """
        drawn = self.tuple_counts > 0
        n_queries = int(drawn.sum())
        if n_queries < 2:
            return 0.0
        residuals = self.tuple_losses - self.rank_loss() / 100.0 * self.tuple_counts
        spread = np.sqrt(n_queries / (n_queries - 1) * np.square(residuals[drawn]).sum())
        return float(100.0 * spread / self.tuple_counts.sum())

    def query_rank_losses(self) -> Float64:
        """Return the share of wrong tuples of each query in per cent; NaN where none was drawn."""
        losses = np.full(len(self.tuple_losses), np.nan)
        np.divide(100.0 * self.tuple_losses, self.tuple_counts, out=losses, where=self.tuple_counts > 0)
        return losses


def top_documents(scores: Float32, depth: int) -> tuple[Int32, Float32]:
    """Return the best documents of each row and their scores, by (-score, number).

    Scores, (n, n_documents) float32, are -inf for documents that do not take part. The results are (n, ``depth``) int32
    and float32, -1 and -inf after the end.
    """
    n, n_documents = scores.shape
    n_kept = min(depth, n_documents)
    documents = np.full((n, depth), -1, dtype=np.int32)
    best = np.full((n, depth), -np.inf, dtype=np.float32)
    for row in range(n):
        line = scores[row]
        least = np.partition(line, n_documents - n_kept)[n_documents - n_kept]
        # Among equal scores at the border the smallest numbers are taken, which a bare argpartition would not do.
        above = np.flatnonzero(line > least)
        chosen = np.concatenate([above, np.flatnonzero(line == least)[: n_kept - len(above)]])
        chosen = chosen[np.argsort(-line[chosen], kind="stable")]
        chosen = chosen[line[chosen] > -np.inf]
        documents[row, : len(chosen)] = chosen
        best[row, : len(chosen)] = line[chosen]
    return documents, best


def evaluate(
    task: RankingTask,
    scorer: BlockScorer,
    tuples: TestTuples,
    measures: Iterable[str] = MEASURES,
    on_block: Callable[[Ranking], None] | None = None,
    depth: int = DEPTH,
) -> SystemScores:
    """Return a system's measures and rank loss on a task, ranking every document for every query.

    The scorer's rows and columns are the task's queries and pool, in its order. Memory is bounded by the block (about
    32 MB of scores), not by the number of queries. ``on_block`` receives every block's ranking, ``depth`` ranks deep,
    for instance to write a run file.

    `ShapeMismatch` if the scorer is not of this task's queries and pool; `InputError` if a score is not finite.
    """
    n_queries, n_documents = len(task.query_ids), len(task.document_ids)
    if scorer.shape != (n_queries, n_documents):
        raise ShapeMismatch(
            f"the scorer is for {scorer.shape} (queries, documents), the task has {(n_queries, n_documents)}: "
            f"build it from the rows of the task's own query and document ids"
        )
    names = tuple(measures)
    losses = np.zeros(len(tuples.query))
    parts: list[dict[str, Float64]] = []
    step = max(1, min(n_queries, _BLOCK_BYTES // (4 * max(1, n_documents))))
    for start in range(0, n_queries, step):
        stop = min(start + step, n_queries)
        scores = scorer.block(start, stop)
        _check_finite(scores, task, start)
        span = slice(*np.searchsorted(tuples.query, [start, stop]))
        losses[span] = _tuple_losses(scores, tuples, span, start)
        excluded = task.excluded[start:stop]
        scores[row_of(excluded), excluded.indices] = -np.inf
        documents, best = top_documents(scores, depth)
        parts.append(evaluate_ranking(documents, task.grades[start:stop], names, task.relevant_from))
        if on_block is not None:
            on_block(Ranking(start, documents, best))
    return SystemScores(
        {name: np.concatenate([part[name] for part in parts]) for name in names},
        np.bincount(tuples.query, weights=losses, minlength=n_queries).astype(np.float64),
        np.bincount(tuples.query, minlength=n_queries).astype(np.float64),
    )


def _tuple_losses(scores: Float32, tuples: TestTuples, span: slice, start: int) -> Float64:
    """Return 1 for tuples in the wrong order, 1/2 for ties, 0 otherwise."""
    rows = tuples.query[span] - start
    positive, negative = scores[rows, tuples.positive[span]], scores[rows, tuples.negative[span]]
    return np.where(positive < negative, 1.0, np.where(positive == negative, 0.5, 0.0))


def _check_finite(scores: Float32, task: RankingTask, start: int) -> None:
    """Refuse scores that cannot be ordered, naming the query."""
    finite = np.isfinite(scores)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise InputError(
            f"the score of query {task.query_ids[start + row]!r} and document {task.document_ids[column]!r} is "
            f"{float(scores[row, column])}: scores must be finite to be ranked; check the model's vectors"
        )


# A run line is ``query Q0 document rank score tag``, a judgement line ``query 0 document grade``. Tools that read runs
# order by the score column and break ties in their own ways; so that all of them see our order, (-score, id), scores
# are written strictly decreasing: a tied one is lowered by a step of 2**-22 of the query's largest absolute score.
# White space inside ids, which the format cannot hold, is written as ``%XX``, in both kinds of files.
_STEP = 2.0**-22


def token(identifier: str) -> str:
    """Return an id as one word: its white space as ``%XX``, everything else unchanged."""
    if not any(character.isspace() for character in identifier):
        return identifier
    return "".join(quote(c, safe="") if c.isspace() else c for c in identifier)


def strictly_decreasing(scores: Float32) -> Float64:
    """Return the (not increasing) scores with ties lowered by the least step, so that each is below the one before."""
    values = scores.astype(np.float64)
    if len(values) == 0:
        return values
    step = max(float(np.abs(values).max()), 1e-6) * _STEP
    # v_i = min(s_i, v_{i-1} - step) for all i at once: subtracting i * step turns it into a running minimum.
    ramp = step * np.arange(len(values))
    lowered: Float64 = np.minimum.accumulate(values + ramp) - ramp
    return lowered


class RunWriter(AbstractContextManager["RunWriter"]):
    """Writes the rankings of one system into a file as they are made, under the system's name in the sixth column."""

    def __init__(self, path: Path, task: RankingTask, system: str) -> None:
        self._queries = [token(query) for query in task.query_ids]
        self._documents = [token(document) for document in task.document_ids]
        self._system = token(system)
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, ranking: Ranking) -> None:
        """Append the rankings of a block of queries."""
        for row, (documents, scores) in enumerate(zip(ranking.documents, ranking.scores, strict=True)):
            length = int(np.count_nonzero(documents >= 0))
            query = self._queries[ranking.first_query + row]
            numbers = strictly_decreasing(scores[:length]).tolist()
            self._file.writelines(
                f"{query} Q0 {self._documents[document]} {rank} {score:.10g} {self._system}\n"
                for rank, (document, score) in enumerate(zip(documents[:length].tolist(), numbers, strict=True), 1)
            )


def write_qrels(path: Path, task: RankingTask) -> None:
    """Write the judgements of a task: query, 0, document, grade."""
    documents = [token(document) for document in task.document_ids]
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row, query in enumerate(task.query_ids):
            span = slice(task.grades.indptr[row], task.grades.indptr[row + 1])
            for document, grade in zip(task.grades.indices[span], task.grades.data[span], strict=True):
                file.write(f"{token(query)} 0 {documents[document]} {grade:g}\n")
