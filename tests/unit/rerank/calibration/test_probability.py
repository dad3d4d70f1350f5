"""The probability of relevance: found where it is known, refused where there is none, and what the rerank APIs give."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import ConfigError, InputError
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibration.alpha import fit_alpha
from reranker.rerank.calibration.kept import Probability
from reranker.rerank.calibration.probability import fit_probability
from reranker.rerank.calibration.rankings import Rankings, TopicWindow
from reranker.rerank.calibration.topics import Topic
from tests.engines.memory import memory_engine
from tests.engines.policy import library
from tests.seeds import seeded_rng
from tests.served import Served
from tests.services import small_index
from tests.unit.rerank.test_reranker import BODY

Grades = dict[str, dict[str, float]]


def windows_of(scores: list[Any], chances: list[Any], rng: np.random.Generator) -> tuple[Rankings, Grades]:
    """Return windows of these scores, and grades drawn by the chances."""
    rankings, qrels = Rankings(()), Grades()
    for number, (f, chance) in enumerate(zip(scores, chances, strict=True)):
        ids = [f"d{place}" for place in range(len(f))]
        rankings.windows.append(
            TopicWindow(
                ids,
                np.asarray(f, dtype=np.float64),
                np.zeros(len(f)),
                np.zeros(len(f)),
                1.0,
                np.zeros(len(f), dtype=bool),
                np.empty((0, len(f))),
                False,
                frozenset(),
            )
        )
        qrels[str(number)] = {name: float(rng.random() < p) for name, p in zip(ids, chance, strict=True)}
    return rankings, qrels


def test_a_known_probability_is_found() -> None:
    rng = seeded_rng(0)
    scores = [rng.normal(0.4, 0.5, 100) for _ in range(400)]
    rankings, qrels = windows_of(scores, [1 / (1 + np.exp(-(4.0 * f - 3.0))) for f in scores], rng)
    found = fit_probability(rankings, qrels, 0)
    assert found.probability.slope == pytest.approx(4.0, rel=0.05)
    assert found.probability.offset == pytest.approx(-3.0, rel=0.05)
    assert found.error < 0.01
    assert found.share == pytest.approx(np.mean([list(grades.values()) for grades in qrels.values()]))
    assert found == fit_probability(rankings, qrels, 0)


def test_what_separates_perfectly_has_a_finite_slope() -> None:
    rankings, qrels = windows_of([[0.0, 0.1, 0.9, 1.0]] * 10, [[0, 0, 1, 1]] * 10, seeded_rng(1))
    slope, offset = fit_probability(rankings, qrels, 0).probability
    assert math.isfinite(slope) and slope > 5 and -offset / slope == pytest.approx(0.5, abs=0.05)


def test_candidates_without_a_score_do_not_count() -> None:
    rng = seeded_rng(2)
    scores = [rng.normal(size=50) for _ in range(20)]
    chances = [1 / (1 + np.exp(-2 * f)) for f in scores]
    rankings, qrels = windows_of(scores, chances, rng)
    expected = fit_probability(rankings, qrels, 0)
    for number, window in enumerate(rankings.windows):
        longer = window._replace(
            ids=[*window.ids, "none", "own"], model=np.append(window.model, [np.nan, 7.0]), excluded=frozenset(["own"])
        )
        rankings.windows[number] = longer
        qrels[str(number)] |= {"none": 1.0, "own": 1.0}
    assert fit_probability(rankings, qrels, 0) == expected


@pytest.mark.parametrize(
    ("scores", "chances", "message"),
    [
        ([[0.0, 1.0]] * 10, [[0, 0]] * 10, "some candidates must be relevant"),
        ([[0.0, 1.0]] * 10, [[1, 1]] * 10, "others not"),
        ([[1.0, 1.0]] * 10, [[0, 1]] * 10, "must differ"),
        ([[]] * 10, [[]] * 10, "some candidates must be relevant"),
        ([[0.0, 1.0]] * 10, [[1, 0]] * 10, "does not increase with relevance"),
    ],
)
def test_what_cannot_be_fitted_is_refused(scores: list[Any], chances: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_probability(*windows_of(scores, chances, seeded_rng(3)), 0)


def test_probabilities_keep_the_order_and_are_read_back() -> None:
    f = np.array([-800.0, -1.0, 0.0, 2.0, 800.0, np.nan])
    told = Probability(3.0, -1.0).of(f)
    assert (np.diff(told[:5]) > 0).all() and np.isnan(told[5])
    assert told[2] == pytest.approx(1 / (1 + math.e))
    entry = {"alpha": 0.5, "probability": json.loads(json.dumps(Probability(3.0, -1.0)))}
    assert Calibration.from_release({"0" * 16 + ":10": entry}).probabilities == {"0" * 16 + ":10": (3.0, -1.0)}
    for bad in (None, [], [1], [0, 1], [-2, 1], [1, 2, 3], ["a", 1], [float("nan"), 0], [1, float("inf")], 5):
        with pytest.raises(ConfigError, match="slope above 0"):
            Calibration.from_release({"0" * 16 + ":10": {"alpha": 0.5, "probability": bad}})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("probability"), memory_engine(), n=150)
    yield served
    served.engine.close()


def test_a_fit_has_one_only_where_it_is_wanted(served: Served) -> None:
    settings = RerankSettings(window=60, deadline_ms=None, alpha=1.0)
    reranker = Reranker(served.engine, "docs", served.model, settings=settings)
    queries = [f"word{n % 20} word{(n * 7) % 30}" for n in range(30)]
    topics = [Topic(q, {hit.id: 1.0 for hit in reranker.search(q, BODY, size=5).hits}) for q in queries]
    plain = fit_alpha(reranker, topics, "nDCG@10", BODY)
    assert plain.probability is None and "probability" not in plain.to_json()
    fit = fit_alpha(reranker, topics, "nDCG@10", BODY, probability=True)
    assert fit.probability is not None and fit.probability.error < 0.1
    assert {**fit.to_json(), "probability": None} == {**plain.to_json(), "probability": None}


def test_the_rerank_apis_give_it_and_say_so(served: Served, tmp_path: Path) -> None:
    library("fastapi")
    from tests.services import client_of, service_over

    settings = RerankSettings(window=50)
    key = Calibration.key(body_hash(Reranker(served.engine, "docs", served.model)._template or {}), 50)
    asked = {"query": "word1 word7", "documents": ["word1", "word7 word1", "nothing", ""]}
    raw = {"query": "word1 word7", "texts": asked["documents"], "raw_scores": True}
    found = {}
    for name, probabilities in {"order": {}, "probability": {key: Probability(5.0, -2.0)}}.items():
        state = service_over(served, tmp_path / name, rerank=settings, body=None)
        state.serving.reranker.calibration = Calibration({}, {}, probabilities)
        client = client_of(state)
        f = {one["index"]: one["score"] for one in client.post("/rerank", json=raw).json()}
        slope, offset = (5.0, -2.0) if probabilities else (1.0, 0.0)
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            answer = client.post(path, json=raw | {"raw_scores": False} if path == "/rerank" else asked)
            assert answer.headers["x-ssi-score"] == name
            results = answer.json() if path == "/rerank" else answer.json()["results"]
            scores = {one["index"]: one.get("score", one.get("relevance_score")) for one in results}
            for place in (0, 1, 2):
                assert scores[place] == pytest.approx(1 / (1 + math.exp(-(slope * f[place] + offset))), abs=1e-9)
            assert scores[3] == 0.0
            found[name, path] = list(scores)
        assert client.post("/rerank", json=raw).headers["x-ssi-score"] == "order"
    assert len({tuple(order) for order in found.values()}) == 1
