"""A site small enough to learn in seconds: topics whose queries and documents share words by chance alone."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from simulated_data import Site

TOPICS, DOCUMENTS, QUERY_WORDS, DOCUMENT_WORDS = 12, 10, 12, 20


def small_site(work: Path, rng: np.random.Generator, *, page: int = 10, wanted: int = 3) -> Site:
    """Return a site of 12 topics with 10 documents and 66 queries each; 20 of the queries are asked.

    A result page holds ``wanted`` documents of the topic among others, in an arbitrary order that stays. Words alone
    find nothing: what a model finds it has learned from clicks.
    """
    documents: dict[str, str] = {}
    for topic, number in itertools.product(range(TOPICS), range(DOCUMENTS)):
        words = rng.choice(DOCUMENT_WORDS, size=8, replace=False)
        # Words of queries stand in documents of any topic: known, and no help.
        asked_words = [f"ask{rng.integers(TOPICS)}w{rng.integers(QUERY_WORDS)}" for _ in range(4)]
        documents[f"t{topic}-{number}"] = " ".join([*(f"doc{topic}w{word}" for word in words), *asked_words])
    docs = work / "docs.jsonl"
    rows = [json.dumps({"id": one, "title": "", "text": text}) for one, text in documents.items()]
    docs.write_text("\n".join(rows) + "\n", encoding="utf-8")
    texts: dict[str, str] = {}
    grades: dict[str, dict[str, float]] = {}
    pages: dict[str, list[str]] = {}
    asked: list[str] = []
    valid: list[str] = []
    test: list[str] = []
    for topic in range(TOPICS):
        of_topic = [f"t{topic}-{number}" for number in range(DOCUMENTS)]
        others = [one for one in documents if one not in of_topic]
        both = list(itertools.combinations(range(QUERY_WORDS), 2))
        for place, number in enumerate(rng.permutation(len(both)).tolist()):
            query = f"q{topic}-{place}"
            texts[query] = " ".join(f"ask{topic}w{word}" for word in both[number])
            grades[query] = dict.fromkeys(of_topic, 1.0)
            (asked if place < 20 else valid if place < 26 else test).append(query)
            chosen = [*rng.permutation(of_topic)[:wanted], *rng.permutation(others)[: page - wanted]]
            pages[query] = [str(one) for one in rng.permutation(chosen)]
    kept = {query: pages[query] for query in asked}
    return Site("small", docs, ("title^1", "text^1"), texts, grades, asked, valid, test, kept)
