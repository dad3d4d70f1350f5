"""Every bit, every length and added bytes of every file of a model: refused with a typed error, or not ours to ship."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from reranker.errors import ArtifactError
from reranker.models.model_folder import load_model, save_model
from tests.unit.small_models import small_model

FILES = ["manifest.json", "tensors"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a saved model; one loaded before must serve the same after the damage."""
    save_model(small_model(), tmp_path / "model")
    save_model(small_model(), tmp_path / "old")
    old = load_model(tmp_path / "old")
    before = old.encode_queries(["ash tree"]).vectors.copy()
    yield tmp_path / "model"
    np.testing.assert_array_equal(old.encode_queries(["ash tree"]).vectors, before)
    load_model(tmp_path / "old")


def file_of(folder: Path, start: str) -> Path:
    (found,) = folder.glob(f"{start}*")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("start", FILES)
def test_every_flipped_bit_is_noticed(folder: Path, start: str) -> None:
    path = file_of(folder, start)
    good = path.read_bytes()
    unnoticed = []
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(good):
            for bit in range(8):
                file.seek(place)
                file.write(bytes([byte ^ 1 << bit]))
                try:
                    load_model(folder)
                    unnoticed.append((place, bit))
                except ArtifactError as error:
                    assert error.message  # noqa: PT017 - any other error fails the test by itself
            file.seek(place)
            file.write(bytes([byte]))
    assert unnoticed == []
    load_model(folder)


@pytest.mark.parametrize("start", FILES)
def test_every_length_is_noticed(folder: Path, start: str) -> None:
    path = file_of(folder, start)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(ArtifactError):
            load_model(folder)
    for added in (b"\0", b" ", b"\n", good[-1:], b"}" * 9, b"\0" * 4096):
        for longer in (good + added, added + good):
            path.write_bytes(longer)
            with pytest.raises(ArtifactError):
                load_model(folder)
    path.write_bytes(good)
    load_model(folder)


@pytest.mark.parametrize("start", FILES)
def test_a_missing_file_is_named(folder: Path, start: str) -> None:
    path = file_of(folder, start)
    path.unlink()
    with pytest.raises(ArtifactError, match=start):
        load_model(folder)


def test_files_of_two_models_do_not_mix(folder: Path, tmp_path: Path) -> None:
    save_model(small_model(seed=2), tmp_path / "other")
    mine, other = file_of(folder, "tensors"), file_of(tmp_path / "other", "tensors")
    mine.write_bytes(other.read_bytes())
    with pytest.raises(ArtifactError, match="hash of the tensor file is not the one in the manifest"):
        load_model(folder)
    file_of(folder, "manifest").write_bytes(file_of(tmp_path / "other", "manifest").read_bytes())
    with pytest.raises(ArtifactError, match="missing"):
        load_model(folder)


def test_no_folder_no_model_and_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        with pytest.raises(ArtifactError, match=r"holds no model|plain file"):
            load_model(path)
    with pytest.raises(ArtifactError, match="cannot be written"):
        save_model(small_model(), tmp_path / "file")
