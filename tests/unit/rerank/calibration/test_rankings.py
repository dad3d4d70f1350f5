"""Rankings of topics: what is counted of their candidates."""

from __future__ import annotations

import pytest

from reranker.rerank.calibration.alpha import fit_alpha
from reranker.rerank.calibration.fit_warnings import warnings_of
from reranker.rerank.calibration.topics import Topic
from tests.served import Served
from tests.unit.rerank.calibration.made_topics import reranker_of
from tests.unit.rerank.test_reranker import BODY


def test_the_share_of_hits_without_a_common_word_is_counted(served: Served) -> None:
    body = {"query": {"bool": {"should": [{"match": {"text": "{{query}}"}}, {"term": {"tag": {"value": "x"}}}]}}}
    topics = [Topic(f"word{number} word{number + 1}", {"d1": 1.0, "d2": 1.0}) for number in range(35, 47)]
    reranker = reranker_of(served)
    zero = total = 0
    for topic in topics:
        window, _, _ = reranker.score_window(topic.query, body)
        for hit in window.hits:
            source = served.documents[hit.id]
            words = set(f"{source['title']} {source['text']}".split())
            zero += not words & set(topic.query.split())
            total += 1
    fit = fit_alpha(reranker, topics, "nDCG@10", body)
    assert fit.zero_share == pytest.approx(zero / total)
    assert 0.2 < fit.zero_share < 1
    assert any("q·d = 0" in warning for warning in warnings_of(fit))
    clean = fit_alpha(reranker, topics, "AP", BODY)
    assert clean.zero_share == 0.0
    assert not any("q·d = 0" in warning for warning in warnings_of(clean))
