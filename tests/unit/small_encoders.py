"""Small text encoders: folders with five word pieces, and one without a folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from reranker.arrays import Float32

PIECES = {"[PAD]": 0, "red": 1, "green": 2, "blue": 3, "[UNK]": 4}
TABLE = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [1, 1, 0]], np.float32)
# onnx.helper: Gather(TABLE, input_ids) -> last_hidden_state (n, m, 3); inputs input_ids and attention_mask.
GRAPH = base64.b85decode(
    "2njmz0SYY&1$1FzY-I`wX>M?JbYE#?a}p73VRLj}XlZ0*Wo}<{bYXO5A_hlcbZBLA5(IQ<Zh0z82n7fO5CK93bYWs_WlB5%0000000000000"
    "000DwOL000000000000000002M$00000000000000006;(h0DwOL0DwOL000159SR9)Zg6#UUuk4>5)cXw2nP}h3Ih@WZVCeu0c~0$3Jzg(bY"
    "*UIX>V>{ZDDh35)cXw2nP}h3Ih@WZVCeu0c~O`3K48!b97&5X=G$&ZeMeBVRU5@6$%pw0TK@i0}=sl3Ih@WZ3+Vt0c%183IGrh"
)


def write_tokenizer(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    model = {"type": "WordLevel", "vocab": PIECES, "unk_token": "[UNK]"}
    content = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def write_transformer(folder: Path, *, uses_first: bool = False, max_tokens: int = 4) -> Path:
    """Write an encoder whose vectors are the mean, or the first, of the rows of `TABLE`."""
    write_tokenizer(folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(GRAPH)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": uses_first}))
    return folder


def write_static(folder: Path, table: Float32 = TABLE) -> Path:
    """Write static vectors of word pieces, as model2vec does."""
    write_tokenizer(folder)
    save_file({"embeddings": table}, folder / "model.safetensors")
    return folder


class FakeEncoder:
    """Gives each word a vector by its hash, and a text the sum of those of its words, at unit length."""

    name = "fake"

    def __init__(self, n_dims: int = 8, fingerprint: str = "0123") -> None:
        self.n_dims, self.fingerprint = n_dims, fingerprint
        self.n_texts = 0

    def encode(self, texts: Sequence[str]) -> Float32:
        self.n_texts += len(texts)
        rows = np.zeros((len(texts), self.n_dims), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                seed = int.from_bytes(blake2b(word.encode(), digest_size=4).digest(), "little")
                rows[row] += np.random.default_rng(seed).normal(size=self.n_dims).astype(np.float32)
        unit: Float32 = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9).astype(np.float32)
        return unit
