"""Collections with judged queries: read from a folder, split by query, and made into studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.judged_texts import Grades, judged_texts, usable_judgements
from papers.pseudo_queries import with_pseudo_documents
from papers.study import Study, Texts, Trial, study_texts, study_vocabulary
from reranker.errors import InputError
from reranker.evaluation.protocols import RankingTask, draw_tuples
from reranker.text.analyzers import make_analyzer, parse_analyzer

Ids = npt.NDArray[np.int64]

ANALYZER = "unicode,stop=english"
N_WORDS = 20_000
"""Words of the vocabulary, at most."""
TITLE_TIMES = 3
"""How often a title counts beside the text once."""
N_TUPLES = 20_000
TEST_SHARE, VALID_SHARE = 0.4, 0.25
"""Of the queries; and of those that are left, as T7 has it in part (its split is 40, 30 and 30 %)."""
SMALL_QUERIES, SMALL_JUDGED, SMALL_WORDS = 24, 15, 2_000


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents, queries and judgements.

    Parameters
    ----------
    name : str
    document_ids, query_ids : tuple of str
        Ascending.
    documents, queries : Texts
        Rows in the order of the ids, over the words of the documents.
    grades : csr_matrix, (n_queries, n_documents) float32
        Judgements, 0 stored where a document was judged and found not relevant.
    whole : bool
        The judgements list relevant documents alone: every other document counts as not relevant, and a query ranks
        all of them. Otherwise it ranks what was judged for it.
    groups : tuple of str
        One a query; the queries of a group (of one topic) are on the same side of every split. The queries themselves
        if not given.
    relevant_from : float
        Least grade that counts as relevant.
    dropped : mapping of str to int
        What was not used, by reason.
    """

    name: str
    document_ids: tuple[str, ...]
    query_ids: tuple[str, ...]
    documents: Texts
    queries: Texts
    grades: sp.csr_matrix
    whole: bool
    groups: tuple[str, ...] = ()
    relevant_from: float = 1.0
    dropped: Mapping[str, int] = field(default_factory=dict)

    def group_of(self) -> npt.NDArray[np.str_]:
        """Return the group of each query."""
        return np.array(self.groups or self.query_ids)

    def regraded(self, grade_of: Mapping[float, float]) -> Collection:
        """Return the same judgements on another scale; grades that are not named stay."""
        data = np.array([grade_of.get(float(grade), float(grade)) for grade in self.grades.data], dtype=np.float32)
        grades = sp.csr_matrix((data, self.grades.indices, self.grades.indptr), shape=self.grades.shape)
        return replace(self, grades=grades)

    def trial(self, rows: Ids, seed: int) -> Trial:
        """Return some queries to be ranked for: all documents where ``whole``, else those judged for each."""
        grades = self.grades[rows]
        pool = np.arange(len(self.document_ids)) if self.whole else np.unique(grades.indices).astype(np.int64)
        grades = sp.csr_matrix(grades[:, pool])
        grades.sort_indices()
        task = RankingTask(
            tuple(self.query_ids[row] for row in rows),
            tuple(self.document_ids[column] for column in pool),
            grades,
            sp.csr_matrix(np.zeros(grades.shape, dtype=bool)) if self.whole else _others(grades),
            self.dropped,
            self.relevant_from,
        )
        tuples = draw_tuples(task, np.random.default_rng([seed, 1]), N_TUPLES)
        return Trial(self.queries.take(rows), pool.astype(np.int64), task, tuples)

    def study(self, name: str, seed: int, split: Split) -> Study:
        """Return the study of a split."""
        judged = sp.csr_matrix(self.grades[split.train])
        judged.sort_indices()
        relevant = judged.copy()
        relevant.data[relevant.data < self.relevant_from] = 0.0
        relevant.eliminate_zeros()
        return Study(
            name=name,
            seed=seed,
            documents=self.documents,
            queries=self.queries.take(split.train),
            relevant=relevant,
            own=np.full(len(split.train), -1, dtype=np.int64),
            valid=self.trial(split.valid, seed),
            test=self.trial(split.test, seed),
            judged=judged,
        )


@dataclass(frozen=True)
class Split:
    """Rows of the queries to train on, to tune on and to test on."""

    train: Ids
    valid: Ids
    test: Ids


def read_collection(
    folder: Path,
    *,
    small: bool = False,
    max_queries: int | None = None,
    seed: int = 0,
    n_words: int = N_WORDS,
    pseudo_documents: bool = False,
) -> Collection:
    """Return the collection of a folder with docs.jsonl.gz, queries.tsv.gz and qrels.tsv.gz, or of ir_datasets.

    Queries without a relevant document are left out: every order of theirs has the same value.

    Parameters
    ----------
    folder : Path
        Or ``ir_datasets:NAME``.
    small : bool
        Keep 24 queries and 15 judged documents of each.
    max_queries : int, optional
        Keep so many queries, drawn at random.
    seed : int
        Of that draw.
    n_words : int
        Of the vocabulary, at most.
    pseudo_documents : bool
        Give the queries a view of pseudo-documents (R04).

    Raises
    ------
    InputError
        If a file is missing or damaged, or no judgement can be used.
    """
    name, documents, texts, judged = judged_texts(folder)
    grades, dropped = usable_judgements(judged, texts, documents)
    if max_queries is not None and len(grades) > max_queries and not small:
        chosen = np.random.default_rng(seed).choice(sorted(grades), max_queries, replace=False)
        grades = {query: grades[query] for query in sorted(chosen.tolist())}
    if small:
        grades = _small(grades)
        kept = {document for row in grades.values() for document in row}
        documents = {one: text for one, text in documents.items() if one in kept}
        n_words = SMALL_WORDS
    return make_collection(name, documents, texts, grades, n_words=n_words, dropped=dropped,
                           pseudo_documents=pseudo_documents)  # fmt: skip


def make_collection(
    name: str,
    documents: Mapping[str, tuple[str, str]],
    queries: Mapping[str, str],
    grades: Grades,
    *,
    n_words: int = N_WORDS,
    group_of: Mapping[str, str] | None = None,
    dropped: Mapping[str, int] | None = None,
    pseudo_documents: bool = False,
) -> Collection:
    """Return a collection of texts in memory.

    Parameters
    ----------
    name : str
    documents : mapping of id to (title, text)
    queries : mapping of id to text
        Of at least the judged queries.
    grades : mapping of query id to mapping of document id to grade
        All of known queries and documents.
    n_words : int
    group_of : mapping of query id to group, optional
    dropped : mapping of str to int, optional
    pseudo_documents : bool
        As in `read_collection`.
    """
    make = make_analyzer(parse_analyzer(ANALYZER))
    document_ids, query_ids = tuple(sorted(documents)), tuple(sorted(grades))
    if not query_ids:
        raise InputError(f"{name} has no query with a relevant document among those with a text: check qrels and ids")
    titles = make.tokens([documents[one][0] for one in document_ids])
    bodies = make.tokens([documents[one][1] for one in document_ids])
    tokens = [title * TITLE_TIMES + body for title, body in zip(titles, bodies, strict=True)]
    vocabulary = study_vocabulary(tokens, n_words)
    texts = study_texts(tokens, vocabulary)
    words = make.tokens([queries[one] for one in query_ids])
    asked = study_texts(words, vocabulary, texts.idf)
    if pseudo_documents:
        asked = with_pseudo_documents(asked, words, texts, tokens, vocabulary)
    place = {one: column for column, one in enumerate(document_ids)}
    entries = [(row, place[d], g) for row, query in enumerate(query_ids) for d, g in grades[query].items()]
    rows, columns, data = (np.array(part) for part in zip(*entries, strict=True))
    matrix = _matrix(rows, columns, data, (len(query_ids), len(document_ids)))
    groups = () if group_of is None else tuple(group_of[one] for one in query_ids)
    whole = bool((matrix.data > 0).all())
    return Collection(name, document_ids, query_ids, texts, asked, matrix, whole, groups, 1.0, dropped or {})


def repeated_splits(collection: Collection, n_splits: int, seed: int) -> Iterator[tuple[str, Split]]:
    """Yield random splits of 60 to 40 by query (by group), the part for training split again for validation."""
    for number in range(n_splits):
        rng = np.random.default_rng([seed, number])
        names = rng.permutation(np.unique(collection.group_of()))
        n_test = max(1, round(TEST_SHARE * len(names)))
        yield f"split-{number + 1}", _split(collection, names[n_test:], names[:n_test])


def folds(collection: Collection, n_folds: int, seed: int) -> Iterator[tuple[str, Split]]:
    """Yield the folds of a cross-validation over queries (over groups), each query being tested on once."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.unique(collection.group_of()))
    for number in range(n_folds):
        test = np.arange(len(names)) % n_folds == number
        yield f"fold-{number + 1}", _split(collection, names[~test], names[test])


def studies_of(collection: Collection, splits: Iterator[tuple[str, Split]], seed: int) -> Iterator[Study]:
    """Yield the study of each split."""
    for number, (name, split) in enumerate(splits):
        yield collection.study(name, seed + number, split)


def _split(collection: Collection, others: npt.NDArray[np.str_], test: npt.NDArray[np.str_]) -> Split:
    """Return the rows of the groups; the first of the others are for validation."""
    groups = collection.group_of()
    n_valid = max(1, round(VALID_SHARE * len(others)))
    parts = (others[n_valid:], others[:n_valid], test)
    return Split(*(np.flatnonzero(np.isin(groups, part)).astype(np.int64) for part in parts))


def _others(grades: sp.csr_matrix) -> sp.csr_matrix:
    """Return the pairs that were not judged: they take no part."""
    judged = np.zeros(grades.shape, dtype=bool)
    judged[np.repeat(np.arange(grades.shape[0]), np.diff(grades.indptr)), grades.indices] = True
    return sp.csr_matrix(~judged)


def _small(grades: Grades) -> dict[str, dict[str, float]]:
    """Return a few queries with a few judgements each, the relevant and the others in turn."""
    kept: dict[str, dict[str, float]] = {}
    for query in sorted(grades)[:SMALL_QUERIES]:
        order = sorted(grades[query], key=lambda one, row=grades[query]: (-row[one], one))  # type: ignore[misc]
        half = SMALL_JUDGED // 2
        chosen: Sequence[str] = [*order[:half], *order[half:][-(SMALL_JUDGED - half) :]]
        kept[query] = {one: grades[query][one] for one in chosen}
    return kept


def _matrix(
    rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], data: npt.NDArray[np.float64], shape: tuple[int, int]
) -> sp.csr_matrix:
    """Return a CSR matrix with sorted columns, zeros kept."""
    order = np.lexsort((columns, rows))
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    return sp.csr_matrix((data[order].astype(np.float32), columns[order].astype(np.int32), indptr), shape=shape)
