"""A corpus of two made-up languages: pages of a few topics, each with a mate of mostly the same meanings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

N_PAGES, N_TOPICS, N_MEANINGS = 120, 12, 150


def write_corpus(folder: Path, n_pages: int = N_PAGES, seed: int = 0) -> Path:
    """Write pages in "en" (words w0, w1, ...) and in "xx" (v0, v1, ...), with links between pages of a topic.

    Words of the same number mean the same. A third of the words of each page are drawn anew in its mate.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    topics = [rng.choice(N_MEANINGS, 20, replace=False) for _ in range(N_TOPICS)]
    pages: dict[str, list[str]] = {"en": [], "xx": []}
    for page in range(n_pages):
        topic = topics[page % N_TOPICS]
        shared = rng.choice(topic, 16)
        for language, letter in (("en", "w"), ("xx", "v")):
            own = np.concatenate([shared, rng.choice(topic, 4), rng.choice(N_MEANINGS, 4)])
            text = " ".join(f"{letter}{meaning}" for meaning in own)
            source = {"id": f"p{page:03}", "title": f"{letter}{shared[0]}", "text": text}
            pages[language].append(json.dumps(source))
    for language, lines in pages.items():
        with gzip.open(folder / f"docs_{language}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    with gzip.open(folder / "links.tsv.gz", "wt", encoding="utf-8") as file:
        for source_page in range(n_pages):
            for target in range(source_page % N_TOPICS, n_pages, N_TOPICS):
                if target != source_page:
                    file.write(f"p{source_page:03}\tp{target:03}\n")
    return folder


def quiet(what: str, done: int, total: int | None) -> None:
    """Say nothing."""
