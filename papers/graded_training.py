"""What graded systems learn from: judged pairs, with random negatives where none were judged, or pairs from clicks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from papers.plain_kernels import Triples
from papers.preference_pairs import preference_pairs
from papers.study import Preferences, Study
from reranker.errors import TrainingError

Ids = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

NEGATIVES = 4
"""Random documents beside each relevant one, where the judgements list relevant documents alone."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Judged pairs of a study's training queries and documents, ordered by query.

    Parameters
    ----------
    query, document : (n,) int64
    grade : (n,) float64
    """

    query: Ids
    document: Ids
    grade: Doubles

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.query)


def judged_pairs(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> Judged:
    """Return the training judgements; with random documents of grade 0 where no document was judged not relevant.

    Those are drawn uniformly from the documents without a judgement for the query, ``negatives`` for each judgement.

    Raises
    ------
    TrainingError
        If there is no judgement.
    """
    if study.judged is None or not study.judged.nnz:
        raise TrainingError("no judgement to learn from: graded systems need judged documents of training queries")
    query = np.repeat(np.arange(study.judged.shape[0]), np.diff(study.judged.indptr)).astype(np.int64)
    document, grade = study.judged.indices.astype(np.int64), study.judged.data.astype(np.float64)
    if (grade == 0).any() or not negatives:
        return Judged(query, document, grade)
    drawn_query, drawn = _unjudged(study, query, document, rng, negatives)
    query, document = np.concatenate([query, drawn_query]), np.concatenate([document, drawn])
    grade = np.concatenate([grade, np.zeros(len(drawn))])
    order = np.argsort(query, kind="stable")
    return Judged(query[order], document[order], grade[order])


def training_preferences(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> Preferences:
    """Return the pairs from clicks where the study has them; otherwise every judged document over each lesser one.

    Pairs of judgements weigh so that every query weighs the same.

    Raises
    ------
    TrainingError
        If there is no pair.
    """
    if study.preferences is not None:
        if not len(study.preferences):
            raise TrainingError("the clicks state no pair: there is nothing to learn from")
        return study.preferences
    judged = judged_pairs(study, rng, negatives)
    pairs = preference_pairs(judged.grade, judged.query)
    if not len(pairs):
        raise TrainingError("no training query has documents of two different grades: there is no preference to learn")
    query = judged.query[pairs.better]
    weight = 1.0 / np.bincount(query, minlength=len(study.queries))[query]
    return Preferences(query, judged.document[pairs.better], judged.document[pairs.worse], weight)


def triples(preferences: Preferences) -> Triples:
    """Return the pairs as plain SGD takes them."""
    return Triples(preferences.query, preferences.better, preferences.worse)


def relevant_pairs(study: Study) -> tuple[Ids, Ids]:
    """Return query and document of the relevant training pairs, all that OPCA, CCA, JPLSA and CPLSA see (spec T7).

    Raises
    ------
    TrainingError
        If there are fewer than two.
    """
    query, document = study.relevant.nonzero()
    if len(query) < 2:
        raise TrainingError(f"{len(query)} relevant training pairs: projections of pairs need at least 2")
    return query.astype(np.int64), document.astype(np.int64)


def _unjudged(study: Study, query: Ids, document: Ids, rng: np.random.Generator, negatives: int) -> tuple[Ids, Ids]:
    """Return random pairs without a judgement, ``negatives`` a judged pair of the query (fewer if there are fewer)."""
    queries: list[Ids] = []
    drawn: list[Ids] = []
    n_documents = len(study.documents)
    for row in np.unique(query):
        free = np.setdiff1d(np.arange(n_documents), document[query == row], assume_unique=True)
        wanted = min(len(free), negatives * int((query == row).sum()))
        drawn.append(rng.choice(free, wanted, replace=False).astype(np.int64))
        queries.append(np.full(wanted, row, dtype=np.int64))
    return np.concatenate(queries), np.concatenate(drawn)
