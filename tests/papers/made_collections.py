"""Small made collections: queries and documents about a few subjects, told by different words on both sides."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

SUBJECTS = 6
QUERIES_EACH = 4


def write_collection(folder: Path, *, only_relevant: bool = False, fractions: bool = False, seed: int = 0) -> Path:
    """Write docs, queries and qrels: a document of the query's subject has grade 3 or 2, of the next subject 1 or 0.

    Queries say "ask3", documents "tell3" and now and then "ask3": the pair has to be learned.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    documents, subjects = [], []
    for number in range(SUBJECTS * 8):
        subject = number % SUBJECTS
        words = [f"tell{subject}"] * 3 + [f"ask{subject}"] * int(number % 5 == 0)
        words += [f"noise{one}" for one in rng.integers(0, 40, 6)]
        rng.shuffle(words)
        documents.append({"id": f"d{number:03d}", "title": words[0], "text": " ".join(words)})
        subjects.append(subject)
    queries, qrels = [], []
    for number in range(SUBJECTS * QUERIES_EACH):
        subject = number % SUBJECTS
        queries.append(f"q{number:02d}\task{subject} noise{rng.integers(0, 40)}")
        for document, of in zip(documents, subjects, strict=True):
            if of in (subject, (subject + 1) % SUBJECTS):
                grade = float(rng.integers(2, 4) if of == subject else rng.integers(0, 2))
                grade += 0.25 * fractions
                if grade > 0 or not only_relevant:
                    qrels.append(f"q{number:02d}\t{document['id']}\t{grade:g}")
        if fractions:
            qrels.append(f"q{number:02d}\t{documents[(subject + 3) % SUBJECTS]['id']}\t0")
    _write(folder / "docs.jsonl.gz", [json.dumps(one) for one in documents])
    _write(folder / "queries.tsv.gz", queries)
    _write(folder / "qrels.tsv.gz", qrels)
    return folder


def _write(path: Path, lines: list[str]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
