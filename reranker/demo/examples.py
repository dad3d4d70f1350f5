"""Questions whose order changed, and why: the pairs of words that moved a document up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reranker.demo.measuring import Measured, Question
from reranker.rerank import Reranker

N_SHOWN = 3
N_PAIRS = 4


@dataclass(frozen=True)
class WordPair:
    """What a word of the query and a word of the document add to the score."""

    query_word: str
    document_word: str
    adds: float


@dataclass(frozen=True)
class Example:
    """One question before and after.

    Parameters
    ----------
    query : str
    asked_by : str
        The document whose first sentence is the query.
    found : str
        A document that it links to, which training never saw together with it.
    rank_before, rank_after : int
        Its place in BM25's order and in the reranked one.
    before, after : tuple of str
        First ids of both orders.
    pairs : tuple of WordPair
        Of different words, the most that each adds to the score of ``found``.
    """

    query: str
    asked_by: str
    found: str
    rank_before: int
    rank_after: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    pairs: tuple[WordPair, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the example as JSON values."""
        return asdict(self)


def examples_of(measured: Measured, reranker: Reranker, n: int) -> list[Example]:
    """Return the ``n`` questions whose linked document rose most among the first ten, each of another module."""
    examples: list[Example] = []
    seen: set[str] = set()
    for _, number, found in _rises(measured):
        question = measured.questions[number]
        modules = {question.source.partition(".")[0], found.partition(".")[0]}
        if modules & seen:
            continue
        example = _example(measured, number, found, question, reranker)
        if example.pairs:
            seen |= modules
            examples.append(example)
        if len(examples) == n:
            break
    return examples


def _rises(measured: Measured) -> Sequence[tuple[float, int, str]]:
    """Return (minus the gain in 1 / rank, question number, document), the greatest gain first."""
    rises = []
    for number, question in enumerate(measured.questions):
        before = list(measured.rankings["bm25"][str(number)])
        after = list(measured.rankings["reranked"][str(number)])
        for document in sorted(question.topic.grades):
            if document in after and (rise := 1 / (1 + after.index(document)) - 1 / (1 + before.index(document))) > 0:
                rises.append((-rise, number, document))
    return sorted(rises)


def _example(measured: Measured, number: int, found: str, question: Question, reranker: Reranker) -> Example:
    before = list(measured.rankings["bm25"][str(number)])
    after = list(measured.rankings["reranked"][str(number)])
    page = reranker.search(question.topic.query, size=reranker.settings.window, explain=True)
    rows = next((one.contributions for one in page.explanations if one.id == found), ())
    pairs = [WordPair(row.query_word, row.document_word, row.value) for row in rows if row.kind == "learned"]
    helpful = [pair for pair in pairs if pair.adds > 0 and pair.query_word != pair.document_word]
    return Example(
        question.topic.query,
        question.source,
        found,
        before.index(found) + 1,
        after.index(found) + 1,
        tuple(before[:N_SHOWN]),
        tuple(after[:N_SHOWN]),
        tuple(helpful[:N_PAIRS]),
    )
