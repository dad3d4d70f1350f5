"""A reader of the run files that the program writes."""

from __future__ import annotations

from pathlib import Path


def read_run(path: Path) -> dict[str, list[str]]:
    """Return query -> document ids of a TREC run file, by (-score, id)."""
    scored: dict[str, list[tuple[float, str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, _ = line.split()
        scored.setdefault(query, []).append((-float(score), document))
    return {query: [document for _, document in sorted(ranking)] for query, ranking in scored.items()}
