"""What `served` ranks: trained models, the documents of an index, the queries, and scores of all documents."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from generalisation_data import JUDGED, LINKED, MEASURES, Corpus, Grades, read_corpus, together
from vectors import WITH_VECTOR, with_vectors

from reranker.arrays import Float32, Int32, term_rows
from reranker.baselines.comparison import EncodedCorpus, experiment_of
from reranker.baselines.comparison import read_corpus as encoded_by
from reranker.evaluation import BlockScorer, InnerProducts, RankingTask, evaluate_ranking, top_documents
from reranker.formats import read_documents
from reranker.models.ranking_model import EncodedDocuments, RankingModel
from reranker.training import DocumentSource, TrainConfig, from_judgements, from_links, train_model, train_unlabelled

DATA: Final = Path(os.environ.get("SSI_DATA", "../shared/data"))
DEPTH: Final = 1_000
VALUES: Final = ("AP", "nDCG@10", "R@100")
N_WORDS: Final = (5, 10)
"""Words of a page that ask on linked corpora."""
N_VALIDATION: Final = 200
_BLOCK: Final = 256
Sources = Mapping[str, Mapping[str, Any]]


class Case(NamedTuple):
    """A corpus, and what the model is learned from."""

    corpus: str
    learned_from: str
    """``labels``, ``vectors``, ``labels and vectors`` or ``links``."""


CASES: Final = (
    Case("nfcorpus", "labels"),
    Case("nfcorpus", "vectors"),
    Case("nfcorpus", "labels and vectors"),
    Case("cppdocs", "links"),
    Case("aws", "links"),
    *(Case(name, "labels") for name in ("cranfield", "cisi", "wikimedia_discernatron", "esci_sample")),
    *(Case(name, "links") for name in ("mdn", "rfc")),
    Case("insuranceqa", "labels"),
)
assert {case.corpus for case in CASES} <= {*JUDGED, *LINKED}


@dataclass(frozen=True)
class Queries:
    """Queries of one kind: the task, and their texts by id."""

    kind: str
    task: RankingTask
    texts: Mapping[str, str]

    @property
    def in_order(self) -> list[str]:
        """Return the texts in the order of the task."""
        return [self.texts[query] for query in self.task.query_ids]

    def values_of(self, ranked: Int32) -> dict[str, float]:
        """Return the mean of each measure of ranked lists, (n, depth) column numbers with -1 at the end."""
        values = evaluate_ranking(ranked, self.task.grades, VALUES, self.task.relevant_from)
        return {name: float(of.mean()) for name, of in values.items()}


@dataclass(frozen=True)
class Subject:
    """A trained model with the documents that it ranks, and the queries of validation and test."""

    corpus: Corpus
    model: RankingModel
    form: str
    train_s: float
    path: Path
    validation: Sequence[Queries]
    tests: Sequence[Queries]

    @property
    def measure(self) -> str:
        """The measure that boosts are chosen by."""
        return MEASURES[self.corpus.name]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the documents that are ranked, in the order of the tasks."""
        return self.tests[0].task.document_ids

    @cached_property
    def encoded(self) -> EncodedCorpus:
        """All documents, encoded by the model."""
        return encoded_by(self.path, self.model)

    @cached_property
    def sources(self) -> Sources:
        """The documents that are ranked, without their vectors."""
        sources = {document.id: dict(document.source) for document in read_documents(self.corpus.docs)}
        return {identifier: sources[identifier] for identifier in self.ids}

    def rows(self, part: slice, with_lexical: bool) -> EncodedDocuments:
        """Return some of the ranked documents, encoded; without lexical rows only learned words are left."""
        places = self.encoded.rows_of(self.ids[part])
        rows = self.encoded.rows[places]
        if not with_lexical:
            rows = term_rows(np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(len(places) + 1, np.int32))
        return EncodedDocuments(self.encoded.vectors[places], rows, [], np.ones(len(places), bool))

    def scorers(self, queries: Queries, n_impacts: int) -> dict[str, BlockScorer]:
        """Return f, its two parts (of vectors and of words) and the sums of impacts, computed here."""
        found = experiment_of(self.model, self.encoded, queries.task, queries.texts, n_impacts=n_impacts)
        vectors = (found.model.query_vectors, found.model.document_vectors)
        scorers: dict[str, BlockScorer] = {
            "f": found.model,
            "vectors": InnerProducts(query_vectors=vectors[0], document_vectors=vectors[1]),
        }
        if found.model.query_rows is not None:
            rows = (found.model.query_rows, found.model.document_rows)
            scorers["lexical"] = InnerProducts(query_rows=rows[0], document_rows=rows[1])
        if found.impacts is not None:
            scorers["impacts"] = found.impacts
        return scorers


def ranked_by(scorer: BlockScorer, task: RankingTask) -> Int32:
    """Return the first documents of each query by a score of all documents, without those whose score is 0.

    No engine lists these: they have nothing in common with the query.
    """
    parts = []
    for start in range(0, len(task.query_ids), _BLOCK):
        stop = min(start + _BLOCK, len(task.query_ids))
        scores = scorer.block(start, stop)
        scores[(scores == 0) | task.excluded[start:stop].toarray()] = -np.inf
        parts.append(top_documents(scores, DEPTH)[0])
    return np.concatenate(parts)


def reordered(ranked: Int32, scorer: BlockScorer, n_first: int) -> Int32:
    """Return the lists with their first documents ordered by a score; the others keep their places."""
    changed = ranked.copy()
    for row in range(len(ranked)):
        first = ranked[row, :n_first][ranked[row, :n_first] >= 0]
        scores: Float32 = scorer.block(row, row + 1)[0][first]
        changed[row, : len(first)] = first[np.argsort(-scores, kind="stable")]
    return changed


def united(ranked: Int32, others: Int32, scorer: BlockScorer, n_first: int) -> Int32:
    """Return the lists that begin with the first documents of two lists, ordered by a score, each document once.

    The others of ``ranked`` follow in their places.
    """
    changed = np.full_like(ranked, -1)
    for row in range(len(ranked)):
        both = np.concatenate([ranked[row, :n_first], others[row, :n_first]])
        first = np.unique(both[both >= 0])
        rest = ranked[row][~np.isin(ranked[row], [*first, -1])]
        scores: Float32 = scorer.block(row, row + 1)[0][first]
        whole = np.concatenate([first[np.argsort(-scores, kind="stable")], rest])[: ranked.shape[1]]
        changed[row, : len(whole)] = whole
    return changed


def subject_of(case: Case, folder: Path, n_queries: int) -> Subject:
    """Train a model with the defaults, as a user does."""
    corpus = read_corpus(DATA / case.corpus, folder / "corpus", False)
    split = corpus.splits["links" if corpus.linked else "whole"]
    # Labels of which the model has learned cannot choose its boosts.
    asked = split.learn if case.learned_from == "vectors" else split.stop
    validation = _queries_of(corpus, asked, split.learn, N_VALIDATION) if asked else []
    tests = _queries_of(corpus, split.test, together(split.learn, split.stop), n_queries)
    return _trained(case, corpus, split.learn, split.stop, folder, (validation, tests))


def held_out_subject(case: Case, subject: Subject, folder: Path) -> Subject:
    """Return what boosts are chosen with: the subject, or one whose model has not learned from validation queries."""
    if subject.validation:
        return subject
    split = subject.corpus.splits["split"]
    validation = _queries_of(subject.corpus, split.stop, {}, N_VALIDATION, split.pool)
    return _trained(case, subject.corpus, split.learn, {}, folder, (validation, validation))


def _trained(
    case: Case,
    corpus: Corpus,
    learn: Grades,
    stop: Grades,
    folder: Path,
    queries: tuple[Sequence[Queries], Sequence[Queries]],
) -> Subject:
    has_vectors = "vectors" in case.learned_from
    path = with_vectors(corpus, folder) if has_vectors else corpus.docs
    source = DocumentSource(path, WITH_VECTOR) if has_vectors else DocumentSource(path)
    started = time.perf_counter()
    if case.learned_from == "vectors":
        model, _ = train_unlabelled(source, TrainConfig())
        form = "vectors without labels"
    elif corpus.linked:
        links, valid = (from_links([(s, t) for s, of in part.items() for t in of]) for part in (learn, stop))
        model, report = train_model(source, links, TrainConfig(), valid=valid)
        form = report.form.form.name
    else:
        model, report = train_model(source, from_judgements(learn, corpus.queries), TrainConfig())
        form = report.form.form.name
    return Subject(corpus, model, form, time.perf_counter() - started, path, *queries)


def _queries_of(
    corpus: Corpus, asked: Grades, known: Grades, n_queries: int, pool: frozenset[str] | None = None
) -> list[Queries]:
    """Return a sample of queries, as texts: of each kind on linked corpora."""
    if pool is None:
        pool = corpus.splits["links" if corpus.linked else "whole"].pool
    task = corpus.task(asked, known if corpus.linked else {}, pool)
    task, _, _ = task.sample(np.random.default_rng(0), n_queries, len(task.document_ids))
    if not corpus.linked:
        return [Queries("text", task, {query: corpus.queries[query] for query in task.query_ids})]
    found = []
    for n_words in N_WORDS:
        drawn = corpus.asked_with(f"keywords:{n_words}", task.query_ids)
        texts = {query: " ".join(dict.fromkeys(fields[0].split(" "))) for query, fields in drawn.items()}
        found.append(Queries(f"{n_words} words", task, texts))
    return found
