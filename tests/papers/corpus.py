"""A small corpus of clusters of words whose documents link to each other, written as files of the program's formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

N_DOCUMENTS, N_CLUSTERS, WORDS = 60, 6, 24


def write_corpus(folder: Path, n_documents: int = N_DOCUMENTS) -> Path:
    """Write docs.jsonl.gz and links_train, links_valid and links_test.tsv; links join documents of one cluster."""
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    clusters = np.arange(n_documents) % N_CLUSTERS
    with gzip.open(folder / "docs.jsonl.gz", "wt", encoding="utf-8") as file:
        for number, cluster in enumerate(clusters):
            own = rng.integers(WORDS, size=6)
            other = rng.integers(40, size=6)
            words = [f"c{cluster}w{word}" for word in own] + [f"common{word}" for word in other]
            line = {"id": f"d{number:03d}", "title": f"c{cluster}w{number % WORDS}", "text": " ".join(words)}
            file.write(json.dumps(line) + "\n")
    pairs = [
        (source, target)
        for source in range(n_documents)
        for target in range(n_documents)
        if source != target and clusters[source] == clusters[target]
    ]
    order = rng.permutation(len(pairs))[:300]
    parts = np.split(order, [200, 240])
    for name, part in zip(("train", "valid", "test"), parts, strict=True):
        text = "".join(f"d{pairs[place][0]:03d}\td{pairs[place][1]:03d}\n" for place in part)
        (folder / f"links_{name}.tsv").write_text(text, encoding="utf-8")
    return folder
