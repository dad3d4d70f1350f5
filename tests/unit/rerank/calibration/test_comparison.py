"""The comparison of the engine's orders with the model's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reranker.rerank.calibration.alpha import fit_alpha
from reranker.rerank.calibration.comparison import OrderComparison
from reranker.rerank.calibration.rankings import engine_run
from tests.served import Served
from tests.unit.rerank.calibration.made_topics import reranker_of, topics_whose_answers_come_from
from tests.unit.rerank.test_reranker import BODY


def test_three_orders_are_compared_on_held_out_topics(served: Served) -> None:
    topics = topics_whose_answers_come_from(served, 1.0)
    topics[0] = replace(topics[0], excluded=frozenset([next(iter(topics[0].grades))]))
    reranker = reranker_of(served)
    fit = fit_alpha(reranker, topics, "nDCG@10", BODY)
    compared = OrderComparison.of(fit, topics, engine_run(reranker, topics, BODY))
    assert compared.means["weights"] == compared.means["engine"], "the same body"
    assert compared.means["engine"]["nDCG@10"] == pytest.approx(fit.engine)
    assert compared.means["model"]["nDCG@10"] == pytest.approx(fit.held_out)
    test = compared.differences["model", "engine"]["nDCG@10"]
    assert (test.difference, test.standard_error) == pytest.approx((fit.gain, fit.gain_error))
    assert compared.differences["weights", "engine"]["AP"].difference == 0.0
    entry = compared.to_json()["differences"]["model - weights"]["AP"]
    assert entry["difference"] > entry["interval"] > 0 and "runs" not in fit.to_json()
