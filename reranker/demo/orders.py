"""Orders of the same questions by BM25, by the model and by impacts, with the answers and examples that are shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reranker.evaluation import PairedTest, evaluate_run, paired_test, standard_error
from reranker.progress import Progress
from reranker.rerank import Reranker, RerankSettings, default_template
from reranker.rerank.calibration.rankings import pages_of, rank_topics, run_of
from reranker.rerank.calibration.topics import Topic, qrels_of

WINDOW = RerankSettings().window
MEASURES = ("AP", "nDCG@10", "RR")
TOUR: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("remove a file of the operating system", ("os", "shutil", "pathlib")),
    ("find files by wildcards", ("glob", "fnmatch", "pathlib")),
    ("parse command line arguments", ("argparse", "getopt", "optparse", "sys")),
    ("redirect error output", ("sys", "contextlib")),
    ("match a pattern in a string", ("re", "fnmatch")),
    ("choose a random element", ("random", "secrets")),
    ("fetch data from a URL", ("urllib", "http")),
    ("send an email message", ("smtplib", "email")),
    ("difference between two dates", ("datetime",)),
    ("compress data", ("zlib", "gzip", "bz2", "lzma", "zipfile", "tarfile")),
    ("measure how long code takes", ("timeit", "time", "cProfile", "profile")),
    ("test examples in docstrings", ("doctest", "unittest")),
)
"""Questions that are always asked: the tasks of the tour of the standard library in Python's tutorial, in its order.

Each has the packages that the tour, or their own documentation, names for the task.
"""
N_SHOWN = 3
N_PAIRS = 4
N_ASKED = 100
"""Number of questions that simulated people ask."""


@dataclass(frozen=True)
class MeasuredOrders:
    """Rankings and measures of the systems on the same questions: ``bm25``, ``reranked`` and ``impacts``.

    ``impacts`` is the engine's own order with impacts; it is missing if the engine cannot store them.
    """

    questions: Mapping[str, Topic]
    """Id of the document that a question comes from → question with its relevant documents."""
    rankings: Mapping[str, Mapping[str, Sequence[str]]]
    """System → number of the question (as text) → document ids, best first."""
    values: Mapping[str, Mapping[str, np.ndarray]]
    """System → measure → values, (n_questions,) float64."""

    def test(self, measure: str, system: str = "reranked") -> PairedTest:
        """Return the paired test of the difference of a system minus BM25."""
        return paired_test(self.values[system][measure], self.values["bm25"][measure])

    def ranks(self, number: int, document: str) -> tuple[int, int]:
        """Return the 1-based ranks of a document in the orders of BM25 and of the model."""
        before, after = (list(self.rankings[system][str(number)]) for system in ("bm25", "reranked"))
        return before.index(document) + 1, after.index(document) + 1

    def to_json(self) -> dict[str, Any]:
        """Return means, standard errors and tests."""
        systems = {
            system: {name: {"mean": float(v.mean()), "standard_error": standard_error(v)} for name, v in values.items()}
            for system, values in self.values.items()
        }
        tests = self._tests("reranked")
        of_impacts = {"tests_of_impacts": self._tests("impacts")} if "impacts" in self.values else {}
        return {"queries": len(self.questions), "systems": systems, "tests": tests, **of_impacts}

    def _tests(self, system: str) -> dict[str, dict[str, float]]:
        return {
            name: {"difference": test.difference, "standard_error": test.standard_error, "p_t_test": test.p_t_test}
            for name, test in ((name, self.test(name, system)) for name in MEASURES)
        }


@dataclass(frozen=True)
class ShownWordPair:
    """Contribution of a pair of words to the score."""

    query_word: str
    document_word: str
    adds: float
    """Term of the score."""


@dataclass(frozen=True)
class TourAnswer:
    """A question of `TOUR` with the first answers, and the places of the first answer from a package of the task."""

    query: str
    packages: tuple[str, ...]
    """Packages of the task."""
    before: str
    """Id of the first hit of BM25; "" if nothing was found."""
    after: str
    """Id of the first hit after reranking."""
    rank_before: int | None
    """1-based rank of the first hit of BM25 that is in one of the packages; None: not among the first `WINDOW`."""
    rank_after: int | None
    """The same after reranking."""


@dataclass(frozen=True)
class Example:
    """A question with its results before and after reranking."""

    query: str
    asked_by: str
    """Id of the document that the question comes from."""
    found: str
    """Id of a relevant document, one that ``asked_by`` links to."""
    rank_before: int
    """1-based rank of ``found`` in the order of BM25."""
    rank_after: int
    """1-based rank of ``found`` after reranking."""
    before: tuple[str, ...]
    """First hits of BM25."""
    after: tuple[str, ...]
    """First hits after reranking."""
    pairs: tuple[ShownWordPair, ...]
    """Pairs of words with the largest contributions to the score of ``found``."""


def measure(
    reranker: Reranker,
    questions: Mapping[str, Topic],
    alpha: float,
    progress: Progress,
    by_impacts: Reranker | None = None,
) -> MeasuredOrders:
    """Return both orders of the engine's window for each question, and its own order ``by_impacts``.

    ``alpha`` is the weight of the model.
    """
    topics = list(questions.values())
    ranked = rank_topics(reranker, topics, progress=progress)
    rankings = {"bm25": ranked.run((0.0,)), "reranked": ranked.run((alpha,))}
    if by_impacts is not None and by_impacts.model is not None:
        template = default_template(by_impacts.model.encoder.view)
        rankings["impacts"] = run_of(pages_of(by_impacts, topics, template, progress), topics)
    qrels = qrels_of(topics)
    values = {
        system: {
            name: np.array([by_query[str(number)] for number in range(len(questions))])
            for name, by_query in evaluate_run(qrels, run, MEASURES).items()
        }
        for system, run in rankings.items()
    }
    return MeasuredOrders(questions, rankings, values)


def asked_pages(reranker: Reranker, grades: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Return the first ten hits of the first `N_ASKED` questions that find a document which attracts."""
    pages: dict[str, list[str]] = {}
    for query, attracts in grades.items():
        hits = [hit.id for hit in reranker.search(query, size=10).hits]
        if attracts.keys() & set(hits):
            pages[query] = hits
        if len(pages) == N_ASKED:
            break
    return pages


def toured(bm25: Reranker, reranker: Reranker) -> list[TourAnswer]:
    """Return the answers to the questions of `TOUR` by both orders."""

    def rank(ids: Sequence[str], packages: Collection[str]) -> int | None:
        return next((place for place, id_ in enumerate(ids, 1) if id_.partition(".")[0] in packages), None)

    answers = []
    for query, packages in TOUR:
        before, after = ([hit.id for hit in each.search(query, size=WINDOW).hits] for each in (bm25, reranker))
        first_before, first_after = (ids[0] if ids else "" for ids in (before, after))
        ranks = rank(before, packages), rank(after, packages)
        answers.append(TourAnswer(query, packages, first_before, first_after, *ranks))
    return answers


def best_examples(measured: MeasuredOrders, reranker: Reranker, n: int) -> list[Example]:
    """Return the ``n`` questions with the largest gain for a relevant document that reaches the first ten hits.

    All of them come from different modules.
    """
    rises: list[tuple[float, int, str]] = []  # (minus the gain in 1 / rank, question number, document)
    for number, topic in enumerate(measured.questions.values()):
        for document in topic.grades:
            if document in measured.rankings["reranked"][str(number)]:
                before, after = measured.ranks(number, document)
                rises.append((1 / before - 1 / after, number, document))
    examples: list[Example] = []
    seen: set[str] = set()
    asking = list(measured.questions)
    for rise, number, document in sorted(rises):
        modules = {asking[number].partition(".")[0], document.partition(".")[0]}
        if rise >= 0 or modules & seen:
            continue
        example = _example(measured, number, document, reranker)
        if example.pairs:
            seen |= modules
            examples.append(example)
        if len(examples) == n:
            break
    return examples


def _example(measured: MeasuredOrders, number: int, document: str, reranker: Reranker) -> Example:
    source, topic = list(measured.questions.items())[number]
    page = reranker.search(topic.query, size=reranker.settings.window, explain=True)
    rows = next((row.contributions for row in page.explanations if row.id == document), ())
    pairs = [ShownWordPair(row.query_word, row.document_word, row.value) for row in rows if row.kind == "learned"]
    helpful = [pair for pair in pairs if pair.adds > 0 and pair.query_word != pair.document_word]
    first = {system: tuple(ranking[str(number)][:N_SHOWN]) for system, ranking in measured.rankings.items()}
    return Example(
        topic.query,
        source,
        document,
        *measured.ranks(number, document),
        first["bm25"],
        first["reranked"],
        tuple(helpful[:N_PAIRS]),
    )
