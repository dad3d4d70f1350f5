"""TREC run and judgement files.

A run line is ``query Q0 document rank score tag``, a judgement line ``query 0 document grade``. Tools that read runs
order by the score column and break ties in their own ways; so that all of them see our order, (-score, id), the
scores written are strictly decreasing: a tied score is lowered by a step of 2**-22 of the query's largest absolute
score. White space inside ids, which the format cannot hold, is written as ``%XX``, in both kinds of files.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import numpy as np

from reranker.arrays import Float32, Float64
from reranker.evaluation.protocols import RankingTask
from reranker.evaluation.ranking import Ranking

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
