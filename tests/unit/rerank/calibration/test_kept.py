"""A calibration is used for similar bodies and other windows, on the scale of the window's scores, and marked so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import ConfigError
from reranker.rerank import Calibration, Reranker, RerankSettings
from reranker.rerank.calibration.bodies import body_hash, signature_of, similarity
from reranker.rerank.calibration.kept import DEFAULT, ChosenAlpha, window_scale
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import small_index

FIELDS = ["title^3", "text"]


def body(fields: list[str], **more: Any) -> dict[str, Any]:
    return {"query": {"bool": {"must": [{"multi_match": {"query": "{{query}}", "fields": fields, **more}}]}}}


SIMILAR = [
    body(["title^3.01", "text"]),
    body(["text", "title^4.5"]),
    body(FIELDS, boost=2.0),
    body(FIELDS, tie_breaker=0.3),
    {**body(FIELDS), "rescore": {"window_size": 50, "query": {"rescore_query": {"match": {"title": "{{query}}"}}}}},
    {"query": {"bool": {**body(FIELDS)["query"]["bool"], "should": [{"match": {"title": "{{query}}"}}]}}},
]


@pytest.mark.parametrize("other", SIMILAR)
def test_a_changed_body_is_similar_and_has_the_calibration_of_the_other(other: dict[str, Any]) -> None:
    calibration = calibration_of_entry(body(FIELDS))
    assert body_hash(other) != body_hash(body(FIELDS))
    assert similarity(signature_of(other), signature_of(body(FIELDS))) >= 2 / 3
    assert calibration.choose(other, 100) == ChosenAlpha(0.7, "nearest", (), by_window=True)
    assert calibration.choose(other, 100, given=0.2) == ChosenAlpha(0.2, "given")


def calibration_of_entry(template: dict[str, Any], window: int = 100, **more: Any) -> Calibration:
    entry = {"alpha": 0.4, "window_alpha": 0.7, "clauses": sorted(signature_of(template)), **more}
    return Calibration.from_release({Calibration.key(body_hash(template), window): entry})


def test_the_body_itself_has_its_own_alpha_and_another_window_the_nearest() -> None:
    calibration = calibration_of_entry(body(FIELDS))
    assert calibration.choose(body(FIELDS), 100) == ChosenAlpha(0.4, "calibrated")
    assert calibration.choose(body(FIELDS), 50).origin == "nearest"
    near, far = (
        calibration_of_entry(body(FIELDS), window, window_alpha=alpha) for window, alpha in ((50, 0.5), (500, 0.9))
    )
    both = replace(
        near,
        alphas={**near.alphas, **far.alphas},
        window_alphas={**near.window_alphas, **far.window_alphas},
        signatures={**near.signatures, **far.signatures},
    )
    assert [both.choose(body(FIELDS), window).value for window in (20, 100, 200, 1000)] == [0.5, 0.5, 0.9, 0.9]


def test_another_body_has_no_calibration() -> None:
    calibration = calibration_of_entry(body(FIELDS))
    assert calibration.choose({"query": {"match": {"brand": "{{query}}"}}}, 100) == DEFAULT
    assert calibration.choose({"query": {"match_all": {}}}, 100) == DEFAULT
    older = Calibration.from_release({Calibration.key(body_hash(body(FIELDS)), 100): {"alpha": 0.4}})
    assert older.choose(body(["title^2", "text"]), 100) == DEFAULT


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("x", {"alpha": 0.5}),
        ("0" * 16 + ":ten", {"alpha": 0.5}),
        ("0" * 16 + ":10", {}),
        ("0" * 16 + ":10", {"alpha": True}),
        ("0" * 16 + ":10", {"alpha": 2}),
        ("0" * 16 + ":10", 0.5),
    ],
)
def test_a_damaged_calibration_is_refused(key: str, entry: Any) -> None:
    with pytest.raises(ConfigError):
        Calibration.from_release({key: entry})


def test_the_scale_of_a_window_is_its_highest_score_without_pinned_hits() -> None:
    assert window_scale(np.array([1.0, 8.0, np.nan, 1.7e38]), 3.0) == 8.0
    for scores in ([], [0.0, 0.0], [-1.0], [np.nan], [1.7e38]):
        assert window_scale(np.array(scores, dtype=np.float64), 3.0) == 3.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = small_index(tmp_path / "index", memory_engine())
    yield served
    served.engine.close()


@pytest.mark.parametrize("factor", [1.003, 1.5, 40.0])
def test_boosting_a_body_changes_no_order_of_a_similar_one(served: Served, factor: float) -> None:
    """Scores of all hits times a factor: the order on the window's scale stays what it is."""

    def ids(template: dict[str, Any]) -> list[str]:
        calibration = Calibration.from_release(
            {f"{'0' * 16}:30": {"alpha": 0.5, "window_alpha": 0.5, "clauses": sorted(signature_of(template))}}
        )
        reranker = Reranker(
            served.engine,
            "docs",
            served.model,
            calibration=calibration,
            settings=RerankSettings(window=30, deadline_ms=None),
        )
        page = reranker.search("word3 word11", template, size=10)
        assert page.alpha_origin == "nearest" and any("similar body" in notice for notice in page.notices)
        return [hit.id for hit in page.hits]

    plain = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title", "text"]}}}
    boosted = {"query": {"multi_match": {"query": "{{query}}", "fields": [f"title^{factor}", f"text^{factor}"]}}}
    assert ids(boosted) == ids(plain)
