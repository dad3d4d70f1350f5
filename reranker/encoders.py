"""Text encoders that run here while documents are indexed or a model is trained; never while a query is served.

An encoder is a local folder, as model hubs offer it for download:

    model.onnx or onnx/model.onnx, and tokenizer.json    a transformer, run by onnxruntime
    model.safetensors and tokenizer.json                 static vectors of word pieces (model2vec)

Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from reranker.arrays import Float32
from reranker.errors import InputError, MissingExtra

EXTRA: Final = "encoder"
GRAPHS: Final = ("model.onnx", "onnx/model.onnx", "model_optimized.onnx", "onnx/model_optimized.onnx")
"""Places of a transformer's graph in a folder."""
BATCH: Final = 32
"""Texts that are computed together."""
MAX_TOKENS: Final = 512
"""Longest input in tokens, unless the folder states another one."""
_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")


class SentenceEncoder(Protocol):
    """Computes a vector of each text."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digits that differ for encoders that compute other vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> Float32:
        """Return one vector a text, (n, E) float32."""
        ...


def open_encoder(folder: Path) -> SentenceEncoder:
    """Return the encoder of a folder.

    Raises
    ------
    InputError
        If the folder or one of its files is missing or damaged.
    MissingExtra
        If onnxruntime or tokenizers is not installed.
    """
    if not folder.is_dir():
        raise InputError(
            f"the encoder {str(folder)!r} is no folder: download a model with its ONNX graph first, for example by  "
            "hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir DIR  and name that folder"
        )
    graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
    if graph is not None:
        return _Transformer(folder, graph)
    if (folder / "model.safetensors").is_file():
        return _StaticPieces(folder)
    raise InputError(
        f"the folder {str(folder)!r} of an encoder has neither {GRAPHS[0]}, {GRAPHS[1]} nor model.safetensors: "
        "download or export the model's ONNX graph"
    )


class _Transformer:
    """A transformer: the vectors of its tokens, pooled as its folder states, at unit length."""

    def __init__(self, folder: Path, graph: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra("onnxruntime", EXTRA) from error
        self.name = folder.resolve().name
        self.fingerprint = _fingerprint(folder)
        self._tokenizer = _tokenizer(folder)
        stated = _settings(folder / "sentence_bert_config.json").get("max_seq_length")
        is_length = isinstance(stated, int) and not isinstance(stated, bool) and stated > 0
        self._tokenizer.enable_truncation(stated if is_length else MAX_TOKENS)
        self._uses_first = bool(_settings(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = 0, 1  # 0: one for each core
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base class
            raise InputError(
                f"onnxruntime cannot load {str(graph)!r}: {str(error)[:200]}; fetch the file again"
            ) from error
        self._inputs = [each.name for each in self._session.get_inputs()]
        unknown = [name for name in self._inputs if name not in _INPUTS]
        if unknown:
            raise InputError(
                f"the graph {str(graph)!r} has the input {unknown[0]!r}: export one with the inputs "
                f"{', '.join(_INPUTS)}, or some of them"
            )

    def encode(self, texts: Sequence[str]) -> Float32:
        """Return one vector a text, (n, E) float32. Texts of similar length are computed together."""
        encoded = self._tokenizer.encode_batch(list(texts))
        order = np.argsort([len(each.ids) for each in encoded], kind="stable")
        rows: Float32 | None = None
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            found = self._computed([encoded[place] for place in places])
            if rows is None:
                rows = np.zeros((len(texts), found.shape[1]), np.float32)
            rows[places] = found
        return np.zeros((0, 1), np.float32) if rows is None else rows

    def _computed(self, encoded: Sequence[Any]) -> Float32:
        length = max(1, *(len(each.ids) for each in encoded)) if encoded else 1
        inputs = {name: np.zeros((len(encoded), length), np.int64) for name in _INPUTS}
        for row, each in enumerate(encoded):
            n = len(each.ids)
            inputs["input_ids"][row, :n], inputs["attention_mask"][row, :n] = each.ids, 1
            inputs["token_type_ids"][row, :n] = each.type_ids
        output = np.asarray(self._session.run(None, {name: inputs[name] for name in self._inputs})[0], np.float64)
        if output.ndim == 3:
            mask = inputs["attention_mask"][:, :, None]
            summed = (output * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
            output = output[:, 0] if self._uses_first else summed
        return _unit(output)


class _StaticPieces:
    """Static vectors of word pieces: the vector of a text is the mean of those of its pieces, at unit length."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        self.name = folder.resolve().name
        self.fingerprint = _fingerprint(folder)
        self._tokenizer = _tokenizer(folder)
        self._tokenizer.no_truncation()
        path = folder / "model.safetensors"
        try:
            arrays = load_file(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"{str(path)!r} is damaged ({error}): fetch the file again") from error
        n_pieces = self._tokenizer.get_vocab_size()
        table = arrays.get("embeddings")
        if table is None or table.ndim != 2:
            raise InputError(
                f"{str(path)!r} holds {', '.join(sorted(arrays)[:5])}: a folder without an ONNX graph needs the table "
                "'embeddings' with one row a word piece, as model2vec writes it"
            )
        table = np.asarray(table, np.float32)
        rows = arrays.get("mapping", np.arange(n_pieces))
        if len(rows) < n_pieces or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(table)):
            raise InputError(
                f"{str(path)!r} has vectors of {len(table):,} word pieces, and tokenizer.json has {n_pieces:,}: "
                "fetch both files of one model"
            )
        weights = np.asarray(arrays.get("weights", np.ones(len(rows))), np.float32)
        self._table = table[rows] * weights[: len(rows), None]
        if not np.isfinite(self._table).all():
            raise InputError(f"{str(path)!r} has numbers that are not finite: fetch the file again")

    def encode(self, texts: Sequence[str]) -> Float32:
        """Return one vector a text, (n, E) float32; 0 for a text without a known word piece."""
        rows = np.zeros((len(texts), self._table.shape[1]))
        for row, each in enumerate(self._tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if each.ids:
                rows[row] = self._table[each.ids].mean(axis=0, dtype=np.float64)
        return _unit(rows)


def _unit(rows: Any) -> Float32:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0), np.float32)


def _tokenizer(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("tokenizers", EXTRA) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            f"the folder {str(folder)!r} of an encoder has no tokenizer.json: fetch it from the same model"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself
        raise InputError(f"{str(path)!r} is damaged ({str(error)[:200]}): fetch the file again") from error
    tokenizer.no_padding()
    return tokenizer


def _settings(path: Path) -> dict[str, Any]:
    """Return the object of a small JSON file; an empty one if the file is missing."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON ({error}): fetch the file again") from error
    return value if isinstance(value, dict) else {}


def _fingerprint(folder: Path) -> str:
    """Return 16 hex digits of BLAKE2b over the files that vectors depend on."""
    digest = blake2b(digest_size=8)
    files = (*GRAPHS, "model.safetensors", "tokenizer.json", "sentence_bert_config.json", "1_Pooling/config.json")
    for name in files:
        if (folder / name).is_file():
            digest.update(name.encode())
            with open(folder / name, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
    return digest.hexdigest()
