"""Small corpora made by rule, whose links a lexical ranking can follow, or cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.formats import RejectLog
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import TfIdf
from reranker.text.view import TextView
from reranker.training.config import Schedule, TrainConfig, schedule_of
from reranker.training.linear import words_only
from reranker.training.problem import (
    Problem,
    build_problem,
    query_set,
    two_rows,
)
from reranker.training.reading import DocumentSource, Listener, TrainingCorpus, counted, read_corpus_once, vocabulary_of
from reranker.training.training_set import TrainingSet
from tests.seeds import seeded_rng

Sources = list[dict[str, Any]]
Links = list[tuple[str, str]]
N_TOPICS = 12
FILLERS = [f"filler{i}" for i in range(60)]


def write_documents(path: Path, documents: Sources) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def write_links(path: Path, links: Sequence[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(link) + "\n" for link in links))
    return path


@cache
def synonyms(n: int = 240) -> tuple[Sources, Links]:
    """Return documents about 12 topics, half of them in the words of one language, half in those of the other.

    Each document of the first language links to three of the same topic in the second: they share fillers by chance
    alone, and a model must learn that ``red3`` and ``rouge3`` belong together.
    """
    rng = seeded_rng(7)
    documents: Sources = []
    for number in range(n):
        topic, side = number % N_TOPICS, ("en", "fr")[number % 2 if N_TOPICS % 2 else (number // N_TOPICS) % 2]
        words = [f"{side}{topic}x{int(i)}" for i in rng.integers(0, 4, 6)]
        text = " ".join([*words, *rng.choice(FILLERS, 8)])
        documents.append({"id": f"{side}{number:03}", "title": f"{side}{topic}x0", "text": text, "topic": topic})
    french = [d for d in documents if d["id"].startswith("fr")]
    links: Links = []
    for document in documents:
        if document["id"].startswith("en"):
            same = [d["id"] for d in french if d["topic"] == document["topic"]]
            links += [(document["id"], str(target)) for target in rng.choice(same, 3, replace=False)]
    return documents, links


def titled(n: int = 150) -> tuple[Sources, Links]:
    """Return documents whose links are told by the title alone: the text of the source names its target's title.

    All texts are of the same common words, so that text against text says nothing.
    """
    rng = seeded_rng(8)
    common = [f"common{i}" for i in range(40)]
    targets = rng.permutation(n)
    documents = [
        {
            "id": f"d{i:03}",
            "title": f"name{i}",
            "text": " ".join([f"name{targets[i]}", *rng.choice(common, 25)]),
        }
        for i in range(n)
    ]
    return documents, [(f"d{i:03}", f"d{targets[i]:03}") for i in range(n) if targets[i] != i]


def corpus_of(path: Path, evidence: TrainingSet, max_words: int | None = None) -> TrainingCorpus:
    """Read a file as `train_model` does, words of the unicode analyzer, fields title and text."""
    view, analyzer = TextView.parse(["title", "text"]), make_analyzer(AnalyzerConfig())
    corpus = DocumentSource(path, view, analyzer, max_words=max_words)
    tokens = read_corpus_once(corpus, analyzer, Listener(rejects=RejectLog())).tokens
    return counted(tokens, analyzer, TfIdf(vocabulary_of(corpus, tokens)), evidence.document_queries)


def problem_of(
    corpus: TrainingCorpus,
    evidence: TrainingSet,
    held_out: Sequence[str] = (),
    weights: Sequence[float] = (1.0, 1.0),
    *,
    known_negatives: bool = False,
) -> Problem:
    """Return the arrays of a run on all of the evidence."""
    queries = query_set(corpus, [evidence], None)
    documents = two_rows(corpus.learned_rows(weights), None)
    return build_problem(corpus, queries, documents, evidence, held_out, known_negatives=known_negatives)


def schedule(*, only_whole: bool = False, **settings: Any) -> Schedule:
    """Return the numbers of a run on links between known documents; ``only_whole``: without queries of a few words."""
    config = TrainConfig(**settings)
    return schedule_of(config, queries_are_texts=False, unseen_documents=False, only_whole=only_whole)


class Said:
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __call__(self, message: str) -> None:
        self.messages.append(message)

    def __contains__(self, part: str) -> bool:
        return any(part in message for message in self.messages)


def shuffled(links: Links, rng: np.random.Generator) -> Links:
    """Return links from the same sources to the same targets, put together at random."""
    targets = [links[int(i)][1] for i in rng.permutation(len(links))]
    return sorted({(source, target) for (source, _), target in zip(links, targets, strict=True)})


@contextmanager
def nothing_learned() -> Iterator[None]:
    """Train without U and V meanwhile, so that the model is the lexical score."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reranker.training.learning.fit_low_rank", lambda *_: words_only())
        yield
