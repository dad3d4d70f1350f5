"""Preferences for repeated queries: lookup by any spelling, bytes and back, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import InputError, ShapeMismatch
from reranker.models.manifest import describe_model
from reranker.models.model_folder import load_model, save_model
from reranker.models.repeated import RepeatedQueries, preferences_of
from tests.unit.small_models import small_model

KEY = "0123456789abcdef" * 2
PREFERRED = {"Red  shoe": {"d2": 0.5, "d1": -0.25, "d3": 0.0}, "blüe\ud800": {"ü\ud800": 1.5}, "nothing": {"d1": 0.0}}


def test_a_query_is_found_in_any_case_and_spacing() -> None:
    kept = RepeatedQueries.of(KEY, PREFERRED)
    assert len(kept) == 2
    assert kept.of_query(" RED shoe\t") == {"d1": -0.25, "d2": 0.5}
    assert kept.of_query("blüe\ud800") == {"ü\ud800": 1.5}
    assert kept.of_query("nothing") == kept.of_query("shoe red") == kept.of_query("") == {}
    assert preferences_of(kept.of_query("red shoe"), ["d2", "x", "d1"]).tolist() == [0.5, 0.0, -0.25]
    assert preferences_of({}, []).shape == (0,)


def test_of_two_spellings_the_first_counts() -> None:
    kept = RepeatedQueries.of(KEY, {"Red": {"d1": 1.0}, "red": {"d2": 2.0}})
    assert kept.of_query("RED") == {"d1": 1.0}


def test_a_model_keeps_them_byte_for_byte_and_has_another_id(tmp_path: Path) -> None:
    plain = small_model()
    model = replace(plain, repeated=RepeatedQueries.of(KEY, PREFERRED))
    assert model.model_id != plain.model_id and model.encoder_id == plain.encoder_id
    save_model(model, tmp_path / "a")
    loaded = load_model(tmp_path / "a")
    assert loaded.repeated is not None and loaded.model_id == model.model_id
    assert loaded.repeated.of_query("red shoe") == {"d1": -0.25, "d2": 0.5}
    assert describe_model(tmp_path / "a")["format_version"] == 11
    save_model(loaded, tmp_path / "b")
    assert [one.read_bytes() for one in sorted((tmp_path / "a").iterdir())] == [
        one.read_bytes() for one in sorted((tmp_path / "b").iterdir())
    ]
    assert b"red" not in b"".join(one.read_bytes() for one in (tmp_path / "a").iterdir() if one.suffix != ".json")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"key": "0" * 31}, InputError),
        ({"hashes": np.array([2, 1], np.uint64)}, InputError),
        ({"hashes": np.array([1, 2])}, ShapeMismatch),
        ({"offsets": np.array([0, 0, 3])}, InputError),
        ({"offsets": np.array([0, 3])}, InputError),
        ({"documents": ("b", "a", "c")}, InputError),
        ({"documents": ("", "a", "c")}, InputError),
        ({"documents": ("a", "b")}, InputError),
        ({"weights": np.array([1, np.nan, 1], np.float32)}, InputError),
        ({"weights": np.array([1, 0, 1], np.float32)}, InputError),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    parts: dict[str, Any] = {
        "key": KEY,
        "hashes": np.array([1, 2], np.uint64),
        "offsets": np.array([0, 2, 3]),
        "documents": ("a", "b", "c"),
        "weights": np.ones(3, np.float32),
    }
    RepeatedQueries(**parts)
    with pytest.raises(error):
        RepeatedQueries(**parts | changes)


@pytest.mark.parametrize("change", [{"id_offsets": np.array([0, 9])}, {"ids": np.array([0xFF, 0x61, 0x61], np.uint8)}])
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    kept = RepeatedQueries.of(KEY, {"q": {"abc": 1.0}})
    assert RepeatedQueries.from_arrays(KEY, kept.to_arrays()).of_query("q") == {"abc": 1.0}
    with pytest.raises(InputError):
        RepeatedQueries.from_arrays(KEY, kept.to_arrays() | change)
