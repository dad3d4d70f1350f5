"""Saving models into a folder and loading them, byte for byte.

A folder holds ::

    manifest.json                        ids, text view, analyzer, training, measures, files
    tensors-<12 hex>.safetensors         U, V, the words and their document frequencies, the memory,
                                         hashes of the training queries, mean, axes and word vectors of a vector field,
                                         mean of the documents' vectors, preferences for repeated queries

The tensor file is named by its hash, and only the manifest says which file belongs to it. To replace a model, the new
tensor file is written next to the old one, and then the new manifest is renamed over the old one. A reader, or a crash
at any point, therefore sees either the complete old model or the complete new one. The next save removes files that a
crash left behind.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from reranker.arrays import AnyArray
from reranker.engines.analysis import analyzer_definition, changes_of
from reranker.engines.protocol import Engine
from reranker.errors import ArtifactError, ConfigError, InputError
from reranker.kernels.packing import Quantisation
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import MEMORY_TYPES, QueryMemory
from reranker.models.manifest import _entry, describe_model
from reranker.models.ranking_model import ENGINE_ANALYZER, SHORT_QUERY, Encoder, RankingModel
from reranker.models.repeated import REPEATED_TYPES, RepeatedQueries
from reranker.models.tensor_file import REMEDY, _map_tensors, _open_regular, _read_header, tensor_file_name
from reranker.models.training_queries import TrainingQueries
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.text.analyzers import Analyzer, AnalyzerConfig, EngineAnalyzer, make_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary

_VOCABULARY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "words": np.dtype("u1"),
    "offsets": np.dtype("<i8"),
    "document_frequency": np.dtype("<i8"),
    "n_documents": np.dtype("<i8"),
}


_LOAD_ATTEMPTS = 20
"""Times that a model is read again because it was replaced meanwhile: a reader can be slower than several saves."""


# --- saved and loaded


def save_model(model: RankingModel, path: str | os.PathLike[str]) -> str:
    """Write a model into a folder, replacing the model in it, and return the model id.

    Equal models give equal bytes. If writing fails at any point, the folder holds the complete old model or the
    complete new one. Raises `ArtifactError`, and changes nothing, if the folder cannot be written (permission, disk
    full).
    """
    return model.save(path)


def load_model(path: str | os.PathLike[str], engine: Engine | None = None) -> RankingModel:
    """Return the model of a folder that `save_model` wrote. Every byte is verified; U and V are memory-mapped.

    The tensor file is hashed in pieces and then mapped, so a large model is read once and not copied. A process that
    uses the model dies if the file is truncated or overwritten: replace a model by renaming, as `save_model` does.

    Parameters
    ----------
    path : path
        The folder.
    engine : Engine, optional
        Runs the analysis chain of a model with an ``engine:`` analyzer.

    Raises
    ------
    ArtifactError
        If there is no model, a byte of it was changed, or it breaks a rule of the format.
    ConfigError
        If the model's analyzer needs an engine and none is given.
    MissingExtra
        If the model's analyzer needs a library that is not installed.
    """
    folder = Path(path)
    try:
        return _load(folder, engine)
    except ArtifactError as error:
        if "path" in error.data:  # the message names it already
            raise
        raise type(error)(f"model folder {str(folder)!r}: {error.message}", **error.data) from error


def _load(folder: Path, engine: Engine | None) -> RankingModel:
    """Return the model of a folder. Errors whose message names a path have it as ``path`` in their data."""
    for _ in range(_LOAD_ATTEMPTS):
        content = describe_model(folder)
        _check_form(content)
        name, sha256, n_bytes = _file_of(content)
        try:
            descriptor = _open_regular(folder / name)
        except FileNotFoundError:
            continue  # the model was replaced between reading the manifest and the file: read the new manifest
        try:
            arrays = _checked_tensors(descriptor, content, n_bytes, sha256)
        except OSError as error:
            message = f"{str(folder / name)!r} cannot be read: {error.strerror}; {REMEDY}"
            raise ArtifactError(message, path=str(folder / name)) from error
        finally:
            os.close(descriptor)
        return _model_of(content, arrays, _analyzer(content, engine))
    raise ArtifactError(f"{str(folder / name)!r} is missing; {REMEDY}", path=str(folder))


def _file_of(content: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return name, hash and size of the tensor file; the name must be the one derived from the hash, never a path."""
    files = _entry(content, "files", dict)
    if len(files) != 1:
        raise ArtifactError(f"the manifest names {len(files)} files where one is expected; {REMEDY}")
    ((name, file),) = files.items()
    sha256 = _entry(file, "sha256", str) if isinstance(file, dict) else ""
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef") or name != tensor_file_name(sha256):
        raise ArtifactError(f"the file name {name[:80]!r} is not that of its hash; {REMEDY}")
    return name, sha256, _entry(file, "bytes", int)


def _check_size(descriptor: int, n_bytes: int) -> None:
    size = os.fstat(descriptor).st_size
    if size != n_bytes:
        raise ArtifactError(f"the tensor file has {size} bytes where the manifest says {n_bytes}; {REMEDY}")


def _checked_tensors(descriptor: int, content: Mapping[str, Any], n_bytes: int, sha256: str) -> dict[str, AnyArray]:
    """Return the mapped arrays of a file. The cheap checks come first, before the file is read and hashed."""
    _check_size(descriptor, n_bytes)
    specs = _read_header(descriptor, n_bytes)
    stored = {name: (spec.dtype, spec.shape) for name, spec in specs.items()}
    for name, (dtype, shape) in _expected(content).items():
        actual = stored.pop(name, None)
        fits = actual is not None and actual[0] == dtype and len(actual[1]) == len(shape)
        if actual is None or not fits or any(n not in (None, m) for n, m in zip(shape, actual[1], strict=True)):
            raise ArtifactError(f"the array {name!r} is {actual} where {dtype} {shape} is expected; {REMEDY}")
    if stored:
        raise ArtifactError(f"the tensor file holds {sorted(stored)[:3]}, which a model does not have; {REMEDY}")
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        actual_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if actual_sha256 != sha256:
        raise ArtifactError(f"the hash of the tensor file is not the one in the manifest; {REMEDY}")
    return _map_tensors(descriptor, specs, n_bytes)


def _expected(content: Mapping[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]:
    """Return type and shape of each array according to the manifest; None for a length that may be any."""
    n_dims, float32 = _entry(content, "n_dims", int), np.dtype("<f4")
    expected: dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]] = {
        "V": (float32, (_entry(content, "n_document_rows", int), n_dims))
    }
    if not _entry(content, "tied", bool):
        expected["U"] = (float32, (_entry(content, "n_query_rows", int), n_dims))
    if content.get("short_query") is not None:
        if _entry(content, "short_query", int) != SHORT_QUERY:
            raise ArtifactError(f"short_query is {content['short_query']!r} and not {SHORT_QUERY}; {REMEDY}")
        expected["U_short"] = (float32, (_entry(content, "n_query_rows", int), n_dims))
    if "n_word_weights" in content:
        expected["word_weights"] = (float32, (_entry(content, "n_word_weights", int),))
    if "training_queries" in content:
        expected["training_queries"] = (np.dtype("<u8"), (_number_of_queries(content, "training_queries"),))
    if "mean_vector" in content:
        expected["mean_vector"] = (float32, (_entry(content, "mean_vector", int),))
    expected |= _side_vocabularies(content) | _repeated_queries(content)
    if "n_memory_documents" in content:
        n_offsets = _entry(content, "n_memory_documents", int) + 1
        for name, kind in MEMORY_TYPES.items():
            expected[f"memory.{name}"] = (kind, (n_offsets if name.endswith("offsets") else None,))
    if "vector_field" in content:
        field = _vector_field(content)
        n_given, n_kept = _entry(field, "n_given", int), _entry(field, "n_dims", int)
        expected |= {
            "given.mean": (float32, (n_given,)),
            "given.axes": (float32, (n_given, n_kept)),
            "given.U": (float32, (_entry(field, "n_word_rows", int), n_kept)),
        }
    return expected


def _repeated_queries(content: Mapping[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]:
    if "repeated_queries" not in content:
        return {}
    n_queries = _number_of_queries(content, "repeated_queries")
    lengths = {"hashes": n_queries, "offsets": n_queries + 1}
    return {f"repeated.{name}": (kind, (lengths.get(name),)) for name, kind in REPEATED_TYPES.items()}


def _vector_field(content: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = _entry(content, "vector_field", dict)
    names = ("longest", "n_dims", "n_given", "n_word_rows", "share", "weight")
    if sorted(entry.keys() - {"text_encoder"}) != sorted(names):  # earlier models name the text encoder
        raise ArtifactError(f"vector_field has the entries {sorted(entry)[:8]} and not {', '.join(names)}; {REMEDY}")
    return entry


def _given_parts(
    content: Mapping[str, Any], arrays: Mapping[str, AnyArray]
) -> tuple[VectorField | None, WordEncoder | None]:
    """Return the vector field of a model and its query side; None for a model without one."""
    if "vector_field" not in content:
        return None, None
    entry = _vector_field(content)
    field = VectorField(
        arrays["given.mean"],
        arrays["given.axes"],
        _entry(entry, "longest", float),
        _entry(entry, "share", float),
    )
    return field, WordEncoder(arrays["given.U"], _entry(entry, "weight", float))


def _number_of_queries(content: Mapping[str, Any], name: str) -> int:
    entry = _entry(content, name, dict)
    if entry.keys() != {"key", "n"}:
        raise ArtifactError(f"{name} has the entries {sorted(entry)[:3]} and not key and n; {REMEDY}")
    return _entry(entry, "n", int)


def _side_vocabularies(content: Mapping[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]:
    expected: dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]] = {}
    for side in ("document",) if _entry(content, "shared_vocabulary", bool) else ("document", "query"):
        n_words = _entry(content, f"n_{side}_words", int)
        lengths = (None, n_words + 1, n_words, 1)
        for (name, kind), length in zip(_VOCABULARY_TYPES.items(), lengths, strict=True):
            expected[f"{side}.{name}"] = (kind, (length,))
    return expected


def _check_form(content: Mapping[str, Any]) -> None:
    """Raise `ArtifactError` for a model whose document vectors are no sums of word rows, as version 0.1 wrote them."""
    if "document_form" in content:
        raise ArtifactError(
            f"its document form is {repr(content['document_form'])[:40]}, and this version reads linear models only: "
            f"use version 0.1 of the program, which reads it, or train again"
        )


def _analyzer(content: Mapping[str, Any], engine: Engine | None) -> Analyzer:
    try:
        config = AnalyzerConfig.from_json(_entry(content, "analyzer", dict))
    except (ConfigError, TypeError) as error:
        raise ArtifactError(f"the manifest's analyzer is invalid ({error}); {REMEDY}") from error
    if config.kind != "engine":
        return make_analyzer(config)
    if engine is None:
        raise ConfigError(
            f"the model's texts are analyzed by engine:{config.engine_field}, and no engine was given; pass the engine "
            f"(--engine) whose index {config.engine_field} it was trained with"
        )
    index, _, path = str(config.engine_field).partition("/")
    stored = _entry(content, ENGINE_ANALYZER, dict) if ENGINE_ANALYZER in content else None
    return make_analyzer(config, lambda texts: engine.analyze(index, path, texts), stored)


def changed_analyzer(model: RankingModel, engine: Engine) -> str:
    """Return a warning if the analysis chain in the engine is not the one of the training; "" if it is, or is unknown.

    Raises `EngineError` if the engine does not have the index, or does not answer.
    """
    analyzer = model.encoder.analyzer
    if not isinstance(analyzer, EngineAnalyzer) or not analyzer.definition:
        return ""
    index, _, path = str(analyzer.config.engine_field).partition("/")
    changes = changes_of(analyzer.definition, analyzer_definition(engine, index, path))
    if not changes:
        return ""
    return (
        f"the analyzer engine:{analyzer.config.engine_field} was changed after the training of model "
        f"{model.model_id[:12]}, so that its words may no longer match ({changes}): restore the analyzer, or train "
        "again"
    )


def _model_of(content: dict[str, Any], arrays: Mapping[str, AnyArray], analyzer: Analyzer) -> RankingModel:
    """Return the model of verified parts; raises `ArtifactError` if they do not fit each other."""
    query_view = content.get("query_view")
    try:
        documents = Vocabulary.from_arrays(_named(arrays, "document", _VOCABULARY_TYPES))
        shared = _entry(content, "shared_vocabulary", bool)
        vector_field, word_encoder = _given_parts(content, arrays)
        encoder = Encoder(
            TextView.from_json(_entry(content, "text_view", dict)),
            analyzer,
            documents,
            _entry(content, "tf", str),
            arrays["V"],
            cast(Quantisation, _entry(content, "quantisation", str)),
            LexicalSettings.from_json(_entry(content, "lexical", dict)) if "lexical" in content else None,
            QueryMemory.from_arrays(_named(arrays, "memory", MEMORY_TYPES)) if "memory.ids" in arrays else None,
            vector_field,
            LexicalSettings.from_json(_entry(content, "short_lexical", dict)) if "short_lexical" in content else None,
        )
        model = RankingModel(
            encoder,
            documents if shared else Vocabulary.from_arrays(_named(arrays, "query", _VOCABULARY_TYPES)),
            encoder.V if _entry(content, "tied", bool) else arrays["U"],
            _entry(content, "identity", float),
            None if query_view is None else TextView.from_json(query_view),
            _entry(content, "training", dict),
            _entry(content, "metrics", dict),
            arrays.get("U_short"),
            arrays.get("word_weights"),
            TrainingQueries(_entry(content["training_queries"], "key", str), arrays["training_queries"])
            if "training_queries" in arrays
            else None,
            word_encoder,
            _entry(content, "short_row_weight", float) if "short_row_weight" in content else 0.0,
            arrays.get("mean_vector"),
            RepeatedQueries.from_arrays(
                _entry(content["repeated_queries"], "key", str), _named(arrays, "repeated", REPEATED_TYPES)
            )
            if "repeated.hashes" in arrays
            else None,
        )
    except (InputError, ConfigError, TypeError, OverflowError) as error:
        raise ArtifactError(f"the parts of the model do not fit each other: {error}; {REMEDY}") from error
    if encoder.encoder_id != content.get("encoder_id"):
        raise ArtifactError(f"the model's encoder id is not that of its parts; {REMEDY}")
    model.__dict__["manifest"] = content  # verified, so the arrays need not be hashed again
    return model


def _named(arrays: Mapping[str, AnyArray], prefix: str, names: Iterable[str]) -> dict[str, AnyArray]:
    return {name: arrays[f"{prefix}.{name}"] for name in names}
