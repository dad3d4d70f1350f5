"""The demonstration's search: BM25's order beside the reranked one, on links that nobody has trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reranker.demo.corpus import DemoCorpus
from reranker.evaluation.measures import evaluate_run
from reranker.evaluation.significance import PairedTest, paired_test, standard_error
from reranker.rerank import Reranker
from reranker.rerank.fitting import Rankings, rank_topics
from reranker.rerank.topics import Topic

MEASURES = ("AP", "nDCG@10", "RR")
N_WORDS = 12
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Question:
    """A query made of a document's first sentence, and the documents that it should find.

    ``source`` is the document's id.
    """

    source: str
    topic: Topic


@dataclass(frozen=True)
class Measured:
    """Values of both orders on the same questions.

    Parameters
    ----------
    questions : tuple of Question
    rankings : mapping of system to mapping of question number (text) to ids
    values : mapping of system to mapping of measure to (n,) float64
    """

    questions: tuple[Question, ...]
    rankings: Mapping[str, Mapping[str, Sequence[str]]]
    values: Mapping[str, Mapping[str, np.ndarray]]

    def test(self, measure: str) -> PairedTest:
        """Return the paired test of reranked minus BM25."""
        return paired_test(self.values["reranked"][measure], self.values["bm25"][measure])

    def to_json(self) -> dict[str, Any]:
        """Return means, standard errors and tests."""
        systems = {
            system: {name: {"mean": float(v.mean()), "standard_error": standard_error(v)} for name, v in values.items()}
            for system, values in self.values.items()
        }
        tests = {
            name: {"difference": test.difference, "standard_error": test.standard_error, "p_t_test": test.p_t_test}
            for name, test in ((name, self.test(name)) for name in MEASURES)
        }
        return {"queries": len(self.questions), "systems": systems, "tests": tests}


def questions_of(corpus: DemoCorpus, part: str, known: Iterable[str], limit: int, seed: int) -> list[Question]:
    """Return one question a linking document of a part; its own id and its known links are left out of the ranking.

    Parameters
    ----------
    corpus : DemoCorpus
    part : str
        Part of the split whose links are to be found.
    known : iterable of str
        Parts whose links do not take part.
    limit : int
        Most questions, drawn at random.
    seed : int
        Of the draw.
    """
    targets: dict[str, dict[str, float]] = {}
    for source, target in corpus.links[part]:
        targets.setdefault(source, {})[target] = 1.0
    excluded: dict[str, set[str]] = {source: {source} for source in targets}
    for other in known:
        for source, target in corpus.links[other]:
            if source in excluded:
                excluded[source].add(target)
    sources = sorted(targets)
    if len(sources) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(sources), size=limit, replace=False))
        sources = [sources[place] for place in chosen.tolist()]
    return [
        Question(one, Topic(first_sentence(str(corpus.documents[one].source["text"])), targets[one],
                            frozenset(excluded[one])))
        for one in sources
    ]  # fmt: skip


def first_sentence(text: str) -> str:
    """Return the first words of the first sentence, at most `N_WORDS`, on one line."""
    paragraph = text.strip().partition("\n\n")[0]
    sentence = _SENTENCE_END.split(" ".join(paragraph.split()), maxsplit=1)[0]
    return " ".join(sentence.split()[:N_WORDS])


def measure(reranker: Reranker, questions: Sequence[Question], alpha: float, progress: Progress | None) -> Measured:
    """Return both orders of the engine's window for each question, and their values.

    Parameters
    ----------
    reranker : Reranker
    questions : sequence of Question
    alpha : float
        Weight of the model; one of `reranker.rerank.fitting.ALPHAS`.
    progress : callable or None
    """
    found: Rankings = rank_topics(reranker, [question.topic for question in questions], progress=progress)
    rankings = {"bm25": found.by_alpha[0.0], "reranked": found.by_alpha[alpha]}
    qrels = {str(number): dict(question.topic.grades) for number, question in enumerate(questions)}
    values = {
        system: {
            name: np.array([by_query[str(number)] for number in range(len(questions))])
            for name, by_query in evaluate_run(qrels, run, MEASURES).items()
        }
        for system, run in rankings.items()
    }
    return Measured(tuple(questions), rankings, values)
