"""Hashes of training queries: which queries they recognise, and that they neither contain nor mix up names."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from reranker.errors import InputError, ShapeMismatch
from reranker.models import training_queries
from reranker.models.training_queries import TrainingQueries

KEY, OTHER_KEY = "00" * 16, "ff" * 16


def queries_of(texts: list[str], documents: list[str] = [], key: str = KEY) -> TrainingQueries:  # noqa: B006
    found = TrainingQueries.of(key, texts, documents)
    assert found is not None
    return found


def test_texts_are_found_in_any_case_and_spacing_and_documents_by_their_exact_id() -> None:
    known = queries_of(["Red  Shoe", "red shoe", "blue\ud800"], ["D1", "d1"])
    assert len(known) == 4
    assert known.have_texts([" RED\tshoe ", "blue\ud800", "red", "d1", ""]).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert known.have_documents(["D1", "d1", "d1 ", "red shoe"]).tolist() == [True, True, False, False]
    assert known.have_texts([]).shape == known.have_documents([]).shape == (0,)


def test_letters_that_programs_lower_differently_are_found_in_any_spelling() -> None:
    assert queries_of(["ΟΔΟΣ", "İzmir"]).have_texts(["οδοσ", "Οδος", "izmir", "IZMIR"]).all()


def test_the_hash_is_the_one_of_the_format() -> None:
    digest = hashlib.blake2b(b"red shoe", digest_size=8, key=bytes(16), person=b"query text").digest()
    assert queries_of(["Red shoe"]).hashes.tolist() == [int.from_bytes(digest, "little")]


def test_another_key_gives_other_hashes() -> None:
    names = [f"query {number}" for number in range(50)]
    assert not np.isin(queries_of(names).hashes, queries_of(names, key=OTHER_KEY).hashes).any()


def test_queries_of_an_earlier_model_stay_known_under_its_key() -> None:
    earlier = queries_of(["red shoe"], ["d1"], OTHER_KEY)
    known = TrainingQueries.of(KEY, ["blue", "red shoe"], ["d2"], earlier)
    assert known is not None
    assert known.key == OTHER_KEY and len(known) == 4
    assert known.have_texts(["red shoe", "blue"]).all() and known.have_documents(["d1", "d2"]).all()


def test_more_queries_than_are_kept_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_queries, "MAX_TRAINING_QUERIES", 3)
    assert TrainingQueries.of(KEY, ["a", "b"], ["c", "d"]) is None
    assert len(queries_of(["a", "b"], ["c"])) == 3
    with pytest.raises(InputError, match="of 4 training queries, at most 3 are kept"):
        TrainingQueries(KEY, np.arange(4, dtype=np.uint64))


@pytest.mark.parametrize(
    ("key", "hashes", "error"),
    [
        ("0" * 31, np.arange(2, dtype=np.uint64), InputError),
        ("G" * 32, np.arange(2, dtype=np.uint64), InputError),
        (KEY, np.array([2, 1], np.uint64), InputError),
        (KEY, np.array([1, 1], np.uint64), InputError),
        (KEY, np.arange(2), ShapeMismatch),
        (KEY, np.zeros((1, 1), np.uint64), ShapeMismatch),
    ],
)
def test_invalid_hashes_are_refused(key: str, hashes: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TrainingQueries(key, hashes)
