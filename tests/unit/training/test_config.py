"""Settings of training and the numbers that they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reranker.errors import ConfigError
from reranker.training.config import KEPT_NAMES, TrainConfig, kept_settings, schedule_of


def test_training_starts_from_the_lexical_score() -> None:
    default = schedule_of(TrainConfig(dim=25), queries_are_texts=False, unseen_documents=False)
    assert default.init_u == pytest.approx(0.2)
    assert (default.keyword_min, default.keyword_max) == (1, 10)
    assert default.identity_scale * 0.25 == 1.0, "the word match of a usual preference is the margin"


@pytest.mark.parametrize(
    ("evidence", "apart", "share", "words", "dropout"),
    [
        ({}, True, 0.25, (1, 10), 0.5),
        ({"unseen_documents": True}, True, 0.0, (1, 10), 0.5),
        ({"only_whole": True}, False, 0.0, (1, 1), 0.5),
        ({"queries_are_texts": True}, False, 0.0, (1, 1), 0.0),
        ({"queries_are_texts": True, "links_beside": True}, False, 0.7, (1, 10), 0.5),
    ],
)
def test_documents_are_queries_as_a_whole_and_by_a_few_words(
    evidence: dict[str, bool], apart: bool, share: float, words: tuple[int, int], dropout: float
) -> None:
    numbers = schedule_of(TrainConfig(), **({"queries_are_texts": False, "unseen_documents": False} | evidence))
    assert (numbers.short_apart, numbers.keyword_share, numbers.query_dropout) == (apart, share, dropout)
    assert (numbers.keyword_min, numbers.keyword_max) == words
    assert numbers.epochs == 10


def test_epochs_that_are_given_win() -> None:
    assert schedule_of(TrainConfig(epochs=7), queries_are_texts=False, unseen_documents=True).epochs == 7


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("memory", "both", "auto, off"),
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
