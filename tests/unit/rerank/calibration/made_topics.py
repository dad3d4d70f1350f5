"""Topics whose best alpha is known."""

from __future__ import annotations

from reranker.rerank import Reranker, RerankSettings
from reranker.rerank.calibration.topics import Topic
from tests.served import Served
from tests.unit.rerank.test_reranker import BODY


def reranker_of(served: Served) -> Reranker:
    return Reranker(served.engine, served.index, served.model, settings=RerankSettings(window=60, deadline_ms=None))


def topics_whose_answers_come_from(served: Served, alpha: float, n: int = 30) -> list[Topic]:
    """Return topics whose relevant documents are the first five under an alpha."""
    topics = []
    for number in range(n):
        query = f"word{number % 20} word{(number * 7) % 30}"
        options = RerankSettings(window=60, deadline_ms=None, alpha=alpha)
        page = Reranker(served.engine, served.index, served.model, settings=options).search(query, BODY, size=5)
        topics.append(Topic(query, {hit.id: 1.0 for hit in page.hits}))
    return topics
