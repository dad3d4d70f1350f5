"""Text encoders of local folders: known vectors, damaged folders, and missing libraries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reranker.encoders import BATCH, open_encoder
from reranker.errors import InputError, MissingExtra
from tests.unit.small_encoders import GRAPH, TABLE, write_static, write_tokenizer, write_transformer


def test_a_transformer_pools_the_vectors_of_its_tokens(tmp_path: Path) -> None:
    encoder = open_encoder(write_transformer(tmp_path / "tiny"))
    found = encoder.encode(["red", "red green", "blue blue blue blue red", "unknown", ""])
    expected = np.array([[1, 0, 0], np.array([1, 2, 0]) / np.sqrt(5), [0, 0, 1], np.array([1, 1, 0]) / np.sqrt(2)])
    np.testing.assert_allclose(found[:4], expected, atol=1e-6, err_msg="the fifth token is cut off")
    assert encoder.name == "tiny" and not found[4].any() and found.dtype == np.float32
    assert encoder.encode([]).shape[0] == 0


def test_the_first_token_is_used_if_the_folder_states_it(tmp_path: Path) -> None:
    mean, first = write_transformer(tmp_path / "mean"), write_transformer(tmp_path / "first", uses_first=True)
    np.testing.assert_allclose(open_encoder(first).encode(["green red red"]), [[0, 1, 0]])
    assert open_encoder(first).fingerprint != open_encoder(mean).fingerprint


def test_texts_of_any_length_keep_their_order(tmp_path: Path) -> None:
    encoder = open_encoder(write_transformer(tmp_path / "tiny"))
    texts = [" ".join(["red", "green", "blue"][: 1 + n % 3]) for n in range(3 * BATCH + 1)]
    once = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), once, atol=1e-6)


def test_static_vectors_are_the_mean_of_word_pieces(tmp_path: Path) -> None:
    folder = write_static(tmp_path / "static")
    found = open_encoder(folder).encode(["green red", ""])
    np.testing.assert_allclose(found, [np.array([1, 2, 0]) / np.sqrt(5), [0, 0, 0]], atol=1e-6)
    rows = np.array([0, 3, 2, 1, 4])
    save_file(
        {"embeddings": TABLE, "mapping": rows, "weights": np.array([1, 1, 0.5, 1, 1])}, folder / "model.safetensors"
    )
    found = open_encoder(folder).encode(["green red"])
    np.testing.assert_allclose(found, [np.array([0, 1, 3]) / np.sqrt(10)], atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.rename(f.parent / "moved"), "is no folder: download a model"),
        (lambda f: (f / "onnx" / "model.onnx").unlink(), "has neither model.onnx, onnx/model.onnx nor model.safetens"),
        (lambda f: (f / "onnx" / "model.onnx").write_bytes(b"no graph"), r"onnxruntime cannot load .*model.onnx"),
        (lambda f: (f / "onnx" / "model.onnx").write_bytes(b""), r"onnxruntime cannot load .*model.onnx"),
        (
            lambda f: (f / "onnx" / "model.onnx").write_bytes(GRAPH.replace(b"input_ids", b"input_idx")),
            r"has the input 'input_idx': export one with the inputs input_ids, attention_mask, token_type_ids",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), r"has no tokenizer.json: fetch it"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), r"tokenizer.json' is damaged"),
        (lambda f: (f / "1_Pooling" / "config.json").write_text("{"), r"config.json' is not JSON"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = write_transformer(tmp_path / "tiny")
    damage(folder)
    with pytest.raises(InputError, match=message):
        open_encoder(folder)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embeddings": TABLE[:4]}, "has vectors of 4 word pieces, and tokenizer.json has 5"),
        ({"embeddings": TABLE, "mapping": np.array([0, 1, 2, 3, 9])}, "has vectors of 5 word pieces"),
        (
            {"weights": TABLE[0], "other": TABLE},
            r"holds other, weights: a folder without an ONNX graph needs the table",
        ),
        ({"embeddings": np.full_like(TABLE, np.nan)}, "has numbers that are not finite"),
    ],
)
def test_static_vectors_that_cannot_be_used_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    folder = write_tokenizer(tmp_path / "static")
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        open_encoder(folder)
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(InputError, match="is damaged"):
        open_encoder(folder)


@pytest.mark.parametrize("module", ["onnxruntime", "tokenizers"])
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"'{module}' is not installed.*\[encoder\]"):
        open_encoder(write_transformer(tmp_path / "tiny"))


def test_the_longest_input_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = write_transformer(tmp_path / "tiny", max_tokens=1)
    np.testing.assert_allclose(open_encoder(folder).encode(["red blue"]), [[1, 0, 0]])
    for value in (0, True, "many", None):
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": value}))
        assert open_encoder(folder).encode(["red blue"])[0, 2] > 0
