"""The warnings of a fit, and the boosts that a high alpha removes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reranker.rerank.calibration.alpha import FittedSignal, fit_alpha
from reranker.rerank.calibration.cross_validation import Gain
from reranker.rerank.calibration.fit_warnings import lost_boosts, warnings_of
from reranker.rerank.signals import Signal
from tests.served import Served
from tests.unit.rerank.calibration.made_topics import reranker_of, topics_whose_answers_come_from
from tests.unit.rerank.test_reranker import BODY


def test_the_warnings_of_a_fit(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 0.0), "AP", BODY)
    assert any("alpha is 0" in warning for warning in warnings_of(fit))
    weak = replace(fit, alpha=0.5, gain=0.001, gain_p=0.4, n_fallbacks=3)
    texts = " ".join(warnings_of(weak))
    assert "not significant" in texts
    assert "3 of 30" in texts
    assert warnings_of(replace(fit, alpha=0.5, gain=0.1, gain_p=0.001)) == []
    assert replace(fit, gain_p=float("nan")).to_json()["gain_p"] is None


BOOSTED = {
    "query": {
        "function_score": {
            "query": BODY["query"],
            "functions": [{"field_value_factor": {"field": "votes"}}, {"gauss": {"released": {"scale": "10d"}}}],
        }
    },
    "indices_boost": [{"new": 2.0}],
}


def test_boosts_that_a_high_alpha_removes_are_named_with_the_remedy(served: Served) -> None:
    fit = replace(fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0), "AP", BODY), gain_p=0.0)
    (warning,) = warnings_of(replace(fit, alpha=0.95, gain=0.1), BOOSTED)
    assert "a weight of only 0.05" in warning
    assert "function_score (votes, released), indices_boost" in warning
    assert "--signals votes,released" in warning and "--alpha 0.9 gives it the weight 0.1" in warning
    (warning,) = warnings_of(replace(fit, alpha=1.0, gain=0.1), {**BODY, "indices_boost": [{"new": 2.0}]})
    assert "weight of only 0," in warning and "--signals" not in warning


@pytest.mark.parametrize(("alpha", "n_lost"), [(0.0, 0), (0.9, 0), (0.92, 2), (1.0, 2)])
def test_boosts_are_lost_from_a_weight_of_the_engine_below_a_tenth(served: Served, alpha: float, n_lost: int) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0), "AP", BODY)
    assert len(lost_boosts(replace(fit, alpha=alpha), BOOSTED)) == n_lost
    assert lost_boosts(replace(fit, alpha=alpha), BODY) == []
    gain = Gain(0.1, 0.01, 0.001)
    fitted = tuple(FittedSignal(Signal(field, weight=0.5), gain, 0.0) for field in ("votes", "released"))
    signals = replace(fit, alpha=alpha, signals=fitted)
    assert [boost.clause for boost in lost_boosts(signals, BOOSTED)] == ["indices_boost"] * bool(n_lost)
    useless = replace(signals, signals=(fitted[0], replace(fitted[1], signal=Signal("released"))))
    assert len(lost_boosts(useless, BOOSTED)) == n_lost
