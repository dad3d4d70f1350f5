"""Judged queries of a data set, split by their text."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np

from reranker.formats import read_documents
from reranker.tables import read_judgements, read_links, read_queries

TRAIN_SHARE, N_PARTS = 60, 5
LINKED_QUERY_WORDS = 30


@dataclasses.dataclass(frozen=True)
class Collection:
    """A set of documents and judged queries; ``key`` of a query, 0 to 99 and more, decides its side and its part."""

    name: str
    docs: Path
    texts: dict[str, str]
    grades: dict[str, dict[str, float]]

    def key(self, query: str) -> int:
        """Return a number that equal texts share."""
        text = " ".join(self.texts[query].lower().split())
        return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)

    def side(self, *, test: bool) -> list[str]:
        """Return the queries of a side that have a relevant document."""
        return [q for q in self.grades if (self.key(q) % 100 >= TRAIN_SHARE) == test]

    def part(self, query: str) -> int:
        """Return the fold of a training query, 0 to 4."""
        return self.key(query) // 100 % N_PARTS


def read_collection(folder: Path, work: Path, small: bool) -> Collection:
    """Return a data set; ``small`` keeps 300 queries and the documents judged for them."""
    texts = {query.id: query.text for query in read_queries(folder / "queries.tsv.gz")}
    grades = read_judgements(folder / "qrels.tsv.gz")
    kept = {q: dict(g) for q, g in grades.items() if q in texts and any(value > 0 for value in g.values())}
    docs = folder / "docs.jsonl.gz"
    if small:
        chosen = np.random.default_rng(0).permutation(sorted(kept))[:300].tolist()
        kept = {q: kept[q] for q in chosen}
        judged = {d for g in kept.values() for d in g}
        with gzip.open(docs, "rt", encoding="utf-8") as lines:
            some = [line for line in lines if str(json.loads(line)["id"]) in judged]
        docs = work / f"{folder.name}.jsonl"
        docs.write_text("".join(some), encoding="utf-8")
    return Collection(folder.name, docs, texts, kept)


def read_linked_collection(folder: Path, work: Path, small: bool) -> Collection:
    """Return linked documentation as judged queries: title and beginning of a page ask for what it links to."""
    texts = {}
    for document in read_documents(folder / "docs_en.jsonl.gz"):
        words = str(document.source["text"]).split()[:LINKED_QUERY_WORDS]
        texts[document.id] = " ".join([str(document.source["title"]), *words])
    grades: dict[str, dict[str, float]] = {}
    for source, target in read_links(folder / "links_en.tsv.gz"):
        if source != target and source in texts and target in texts:
            grades.setdefault(source, {})[target] = 1.0
    if small:
        grades = dict(list(grades.items())[:300])
    return Collection(folder.name, folder / "docs_en.jsonl.gz", {one: texts[one] for one in grades}, grades)
