"""Settings of training and the numbers that they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reranker.errors import ConfigError
from reranker.training.config import KEPT_NAMES, TrainConfig, kept_settings, parse_query_kind, schedule_of


def test_training_starts_from_the_lexical_score() -> None:
    default = schedule_of(TrainConfig(dim=25), queries_are_texts=False, unseen_documents=False)
    assert default.init_u == pytest.approx(0.2)
    assert (default.keyword_min, default.keyword_max) == (1, 10)
    assert default.identity_scale * 0.25 == 1.0, "the word match of a usual preference is the margin"


@pytest.mark.parametrize(("queries", "epochs"), [("mixed", 10), ("document", 10), ("keywords:4", 30)])
def test_keyword_queries_have_more_epochs(queries: str, epochs: int) -> None:
    for texts, expected in ((False, epochs), (True, 10)):
        numbers = schedule_of(TrainConfig(queries=queries), queries_are_texts=texts, unseen_documents=False)
        assert numbers.epochs == expected


@pytest.mark.parametrize(
    ("settings", "apart", "share"),
    [
        ({}, True, 0.25),
        ({"queries": "document"}, False, 0.0),
        ({"queries": "keywords:4"}, False, 1.0),
    ],
)
def test_short_queries_are_learned_apart_beside_documents(settings: dict[str, Any], apart: bool, share: float) -> None:
    numbers = schedule_of(TrainConfig(**settings), queries_are_texts=False, unseen_documents=False)
    assert (numbers.short_apart, numbers.keyword_share) == (apart, share)


def test_epochs_that_are_given_win() -> None:
    assert schedule_of(TrainConfig(epochs=7), queries_are_texts=False, unseen_documents=True).epochs == 7


def test_texts_are_never_cut_to_keywords() -> None:
    numbers = schedule_of(TrainConfig(queries="keywords:5"), queries_are_texts=True, unseen_documents=False)
    assert numbers.keyword_share == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("document", (0.0, 1, 1)),
        ("mixed", (0.7, 1, 10)),
        ("keywords:1", (1.0, 1, 2)),
        ("keywords:10", (1.0, 4, 15)),
        ("keywords:1000", (1.0, 334, 1500)),
    ],
)
def test_kinds_of_queries(text: str, expected: tuple[float, int, int]) -> None:
    assert parse_query_kind(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keywords",
        "keywords:",
        "keywords:0",
        "keywords:1001",
        "keywords:-3",
        "keywords:2.5",
        "Mixed",
        "documents",
        "mixed:3",
    ],
)
def test_other_kinds_of_queries_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mixed, document or keywords:K with K from 1 to 1000"):
        TrainConfig(queries=text)


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("generalise", "both", "auto, documents, links"),
        ("dim", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("epochs", 0, "at least 1"),
    ],
)
def test_illegal_values_are_named_with_the_legal_ones(name: str, value: Any, legal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{name: value})
    message = str(caught.value)
    assert name in message and str(value) in message and legal in message


def test_settings_are_json() -> None:
    config = TrainConfig(dim=7, epochs=5)
    assert TrainConfig(**json.loads(json.dumps(kept_settings(config)))) == config


def test_manifests_keep_the_schedule_under_the_names_of_version_0_1() -> None:
    kept = kept_settings(schedule_of(TrainConfig(), queries_are_texts=False, unseen_documents=False))
    assert (kept["margin_identity"], kept["worse_share"]) == (4.0, 0.0)
    assert not kept.keys() & KEPT_NAMES.keys()
