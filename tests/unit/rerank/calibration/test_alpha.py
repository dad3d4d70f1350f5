"""The fit of alpha: it is right by construction, kept, and finite for odd scores and judgments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from reranker.engines.protocol import Engine
from reranker.errors import InputError
from reranker.releases import Release, read_control, update_control
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibration.alpha import ALPHAS, fit_alpha, keep_in_release
from reranker.rerank.calibration.fit_warnings import warnings_of
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.search import calibration_of
from tests.served import Served
from tests.unit.rerank.calibration.made_topics import reranker_of, topics_whose_answers_come_from
from tests.unit.rerank.test_reranker import BODY


@pytest.mark.parametrize("alpha", [0.0, ALPHAS[10], ALPHAS[16], 1.0])
def test_the_alpha_that_made_the_answers_is_found(served: Served, alpha: float) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, alpha), "nDCG@10", BODY)
    assert fit.fitted == pytest.approx(1.0)
    assert dict(fit.curve)[alpha] == pytest.approx(1.0)
    assert fit.alpha <= alpha
    assert fit.ceiling == pytest.approx(1.0)
    assert fit.held_out > 0.97
    assert fit.gain == pytest.approx(fit.held_out - fit.engine)
    assert fit.engine == dict(fit.curve)[0.0]
    assert fit.model == dict(fit.curve)[1.0]
    assert (fit.alpha == 0.0) == (alpha == 0.0)


@pytest.mark.parametrize("n", [1, 9])
def test_fewer_than_ten_queries_are_refused_with_the_number_that_is_needed(served: Served, n: int) -> None:
    with pytest.raises(InputError, match=rf"{n} queries are too few to fit alpha: at least 10 are needed"):
        fit_alpha(reranker_of(served), [Topic("word1", {"d1": 1.0})] * n, "nDCG@10", BODY)


def test_ten_queries_suffice(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0, 10), "nDCG@10", BODY)
    assert fit.n_queries == 10 and fit.alpha > 0 and np.isfinite([fit.held_out_error, fit.gain_p]).all()


def test_a_fit_is_kept_in_the_release_and_found_by_searches(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, ALPHAS[16]), "AP", BODY)
    model = served.model
    with pytest.raises(InputError, match="is no version"):
        keep_in_release(served.engine, served.index, model.model_id, BODY, 60, fit)
    release = Release(model.model_id, model.encoder_id, {"0" * 16 + ":10": {"alpha": 0.25}})
    update_control(served.engine, served.index, lambda record: record.with_release(release))
    known = replace(fit, held_out_from_training=False)
    keep_in_release(served.engine, served.index, model.model_id, BODY, 61, known)
    kept = read_control(served.engine, served.index).release(model.model_id).calibration
    assert kept[Calibration.key(body_hash(BODY), 61)]["held_out_from_training"] is False
    update_control(served.engine, served.index, lambda record: record.with_release(release))
    keep_in_release(served.engine, served.index, model.model_id, BODY, 60, fit)
    entries = read_control(served.engine, served.index).release(model.model_id).calibration
    assert entries.keys() == {"0" * 16 + ":10", Calibration.key(body_hash(BODY), 60)}
    calibration = calibration_of(served.engine, served.index, model.model_id)
    assert calibration.choose(BODY, 60).value == fit.alpha
    assert calibration_of(served.engine, served.index, "other") == Calibration()
    assert calibration_of(served.engine, "unknown-index", model.model_id) == Calibration()


class OddScores:
    """An engine that gives each hit another score: ``change`` maps the scores of a page."""

    def __init__(self, engine: Engine, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._engine, self._change = engine, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search(self, *args: Any, **options: Any) -> Any:
        page = self._engine.search(*args, **options)
        scores = self._change(np.array([hit.score for hit in page.hits], float)).tolist()
        return replace(
            page,
            hits=tuple(msgspec.structs.replace(hit, score=score) for hit, score in zip(page.hits, scores, strict=True)),
        )


ODD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": np.ones_like,
    "zero": np.zeros_like,
    "negative": lambda scores: scores - 100.0,
    "huge": lambda scores: scores * 1e29 / 100,
    "some NaN": lambda scores: np.where(np.arange(len(scores)) % 3 == 0, np.nan, scores),
    "all NaN": lambda scores: np.full_like(scores, np.nan),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scores_of_the_engine_give_a_finite_fit(served: Served, name: str) -> None:
    topics = topics_whose_answers_come_from(served, ALPHAS[16])
    engine: Any = OddScores(served.engine, ODD[name])
    settings = RerankSettings(window=60, deadline_ms=None)
    fit = fit_alpha(Reranker(engine, served.index, served.model, settings=settings), topics, "nDCG@10", BODY)
    assert 0.0 <= fit.alpha <= 1.0
    means = np.array([mean for _, mean in fit.curve])
    assert np.isfinite([*means, fit.held_out, fit.gain, fit.ceiling]).all()
    plain = dict(fit_alpha(reranker_of(served), topics, "nDCG@10", BODY).curve)
    assert dict(fit.curve)[1.0] == pytest.approx(plain[1.0]), "the model's order does not depend on these scores"
    if name in ("constant", "zero"):
        np.testing.assert_allclose(means[1:], means[-1])
    flat = name in ("constant", "zero", "all NaN")
    assert fit.n_equal_scores == (len(topics) if flat else 0)
    assert any("30 of 30 queries the same score" in warning for warning in warnings_of(fit)) == flat
    if name == "negative":  # a constant added to all scores of a query changes no order
        np.testing.assert_allclose(means, list(plain.values()), atol=0.02)
    json.dumps(fit.to_json(), allow_nan=False)


@pytest.mark.parametrize("grade", [0.0, 1.0, 3.0])
def test_judgments_of_one_grade_leave_the_engines_order(served: Served, grade: float) -> None:
    """If every candidate has the same grade, no order is better than another."""
    topics = [Topic(f"word{n}", dict.fromkeys(served.documents, grade)) for n in range(12)]
    fit = fit_alpha(reranker_of(served), topics, "nDCG@10", BODY)
    assert fit.alpha == 0.0 and fit.gain == 0.0
    assert fit.engine == pytest.approx(min(grade, 1.0)) and fit.ceiling == pytest.approx(min(grade, 1.0))
    assert any("alpha is 0" in warning for warning in warnings_of(fit))
    json.dumps(fit.to_json(), allow_nan=False)
