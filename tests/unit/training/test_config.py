"""Settings of training and the numbers that they stand for."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from reranker.errors import ConfigError
from reranker.training.config import KEPT_NAMES, TrainConfig, kept_settings, parse_query_kind, schedule_of


def test_training_starts_from_the_lexical_score() -> None:
    default = schedule_of(TrainConfig(dim=25), queries_are_texts=False, unseen_documents=False)
    assert default.init_v == 0.0 and default.init_u == pytest.approx(0.2)
    assert default.hard_negatives and default.rate_end == 0.0
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


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("epochs", 7, "epochs"),
        ("rate", 0.3, "rate_start"),
        ("identity_scale", 2.5, "identity_scale"),
        ("max_norm", 4.0, "max_norm"),
        ("max_trials", 9, "max_trials"),
        ("query_dropout", 0.1, "query_dropout"),
        ("document_dropout", 0.2, "document_dropout"),
        ("init_std", 0.7, "init_u"),
        ("stated_negative_ratio", 0.25, "stated_negative_ratio"),
    ],
)
def test_what_is_stated_wins_over_the_preset(name: str, value: float, field: str) -> None:
    config = TrainConfig(**{name: value})  # type: ignore[arg-type]
    assert getattr(schedule_of(config, queries_are_texts=False, unseen_documents=True), field) == value


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
        ("threads", 0, "at least 1"),
        ("patience", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("epochs", 0, "at least 1"),
        ("rate", 0.0, "above 0"),
        ("rate", math.nan, "above 0"),
        ("rate", math.inf, "above 0"),
        ("identity_scale", 0.0, "above 0"),
        ("max_norm", -0.1, "at least 0"),
        ("max_norm", math.nan, "at least 0"),
        ("max_trials", 0, "at least 1"),
        ("query_dropout", 1.0, "below 1"),
        ("query_dropout", -0.1, "at least 0"),
        ("document_dropout", 1.0, "below 1"),
        ("init_std", 0.0, "above 0"),
        ("stated_negative_ratio", 1.01, "at least 0 and at most 1"),
        ("stated_negative_ratio", math.nan, "at least 0 and at most 1"),
        ("max_rows", -1, "at least 0"),
    ],
)
def test_illegal_values_are_named_with_the_legal_ones(name: str, value: Any, legal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{name: value})
    message = str(caught.value)
    assert KEPT_NAMES.get(name, name) in message and str(value) in message and legal in message


def test_settings_are_json() -> None:
    config = TrainConfig(dim=7, rate=0.5, identity_scale=2.0)
    assert TrainConfig.from_json(json.loads(json.dumps(kept_settings(config)))) == config


def test_manifests_keep_settings_under_the_names_of_version_0_1() -> None:
    config = TrainConfig(identity_scale=2.0, stated_negative_ratio=0.5)
    schedule = schedule_of(config, queries_are_texts=False, unseen_documents=False)
    for settings, names in (
        (config, {"margin_identity": 2.0, "worse_share": 0.5}),
        (schedule, {"margin_identity": 2.0, "worse_share": 0.5, "screened": True}),
    ):
        kept = kept_settings(settings)
        assert {name: kept[name] for name in names} == names
        assert not kept.keys() & KEPT_NAMES.keys()
