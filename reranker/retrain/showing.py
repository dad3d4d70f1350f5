"""Documents of the report by their titles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from reranker.engines.base import Engine
from reranker.retrain.changes import LIVE, NEW, top
from reranker.retrain.report import Example
from reranker.retrain.serving_scores import RankedList

if TYPE_CHECKING:
    from reranker.text.view import TextView

TITLE_LENGTH = 64
MAX_IDS = 1_000


def examples_of(engine: Engine, index: str, view: TextView, lists: Mapping[str, RankedList]) -> dict[str, Example]:
    """Return the first documents of both orders of some queries, by title; by id, too, where titles are the same."""
    tops = {query: (top(one, LIVE), top(one, NEW)) for query, one in lists.items()}
    titles = titles_of(engine, index, view, sorted({d for sides in tops.values() for side in sides for d in side}))
    often = Counter(titles.values())

    def named(document: str) -> str:
        title = titles.get(document, document)
        return f"{title} ({document})" if often[title] > 1 else title

    return {
        query: Example([named(one) for one in live], [named(one) for one in new]) for query, (live, new) in tops.items()
    }


def titles_of(engine: Engine, index: str, view: TextView, documents: list[str]) -> dict[str, str]:
    """Return the first text of each document, cut to one line; its id where there is none."""
    titles: dict[str, str] = {}
    fields = [spec.path for spec in view.fields]
    for first in range(0, len(documents), MAX_IDS):
        part = documents[first : first + MAX_IDS]
        body = {"query": {"ids": {"values": part}}, "size": len(part), "_source": fields}
        for hit in engine.search(index, body).hits:
            text = next((text for text in view.texts(hit.source) if text.strip()), hit.id)
            line = " ".join(text.split())
            titles[hit.id] = line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…"
    return titles
