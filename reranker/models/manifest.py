"""The manifest of a model folder: its content, its format versions, and the model id.

``manifest.json`` is accepted only if writing its content again gives the same bytes. Its ``model_id`` is the SHA-256 of
all other entries, and it holds the hash of the tensor file, so a changed byte anywhere in the model is detected.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from reranker.errors import ArtifactError
from reranker.models.tensor_file import REMEDY, _open_regular

FORMAT: Final = "ssi-model"


FORMAT_VERSIONS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""Format versions; a program refuses versions that it does not know.

1: what every program reads. 2: a ``document_form``, which only version 0.1 of the program reads. 3: ``lexical``
settings, or a ``short_query`` with its own U. 4: a query memory of ``n_memory_documents``. 5: ``n_word_weights``
weights of query words. 6: hashes of the ``training_queries``. 7: the ``vector_field`` of vectors that documents have
already. 8: ``short_lexical`` settings of lexical rows for short queries. 9: the ``short_row_weight`` of these rows in
the score of other queries. 10: the ``mean_vector`` of the training documents. 11: preferences of users for
``repeated_queries``.
"""


MANIFEST: Final = "manifest.json"


MAX_MANIFEST_BYTES: Final = 1 << 20


T = TypeVar("T")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with its ``model_id``.

    Values without a JSON type are converted: numpy scalars and arrays to numbers and lists, tuples to lists, paths to
    text, NaN and infinities to null. `ArtifactError` is raised if a value cannot be converted, or the manifest would be
    larger than `MAX_MANIFEST_BYTES`.
    """
    version = _version_of(content)
    plain: dict[str, Any] = _plain({**content, "format": FORMAT, "format_version": version})
    plain.pop("model_id", None)
    manifest = {**plain, "model_id": hashlib.sha256(manifest_bytes(plain)).hexdigest()}
    size = len(manifest_bytes(manifest))
    if size > MAX_MANIFEST_BYTES:
        raise ArtifactError(
            f"the manifest would have {size} bytes, at most {MAX_MANIFEST_BYTES} can be read; keep less in training "
            f"and metrics"
        )
    return manifest


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """Return a manifest in its canonical form: indented, keys sorted, ASCII."""
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a model folder after checking every byte of it and its format version.

    The arrays are not checked. `ArtifactError` is raised if the manifest is missing, too large or damaged, or has
    another format or an unknown version.
    """
    folder = Path(path)
    data = _read_capped(folder / MANIFEST)
    try:
        content = json.loads(data)
        canonical = isinstance(content, dict) and manifest_bytes(content) == data
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MANIFEST} cannot be read ({type(error).__name__}); {REMEDY}") from error
    if not canonical:
        raise ArtifactError(f"{MANIFEST} is not as it was written (it was edited, or a byte has changed); {REMEDY}")
    rest = {key: value for key, value in content.items() if key != "model_id"}
    if content.get("model_id") != hashlib.sha256(manifest_bytes(rest)).hexdigest():
        raise ArtifactError(f"the content of {MANIFEST} does not match its model id; {REMEDY}")
    if content.get("format") != FORMAT:
        raise ArtifactError(
            f"{str(folder)!r} has the format {str(content.get('format'))[:40]!r}, not {FORMAT!r}; {REMEDY}",
            path=str(folder),
        )
    version = content.get("format_version")
    if version not in FORMAT_VERSIONS or type(version) is not int:
        raise ArtifactError(
            f"{str(folder)!r} has format version {repr(version)[:40]}; this program reads "
            f"{' and '.join(map(str, FORMAT_VERSIONS))}: install the version of the program that wrote it, or a later "
            f"one",
            version=str(version)[:40],
            path=str(folder),
        )
    if version != _version_of(content):
        entries = [name for name in _VERSIONED if name in content]
        raise ArtifactError(
            f"{str(folder)!r} has format version {version} and the entries {', '.join(entries) or 'of version 1'}, "
            f"which make it version {_version_of(content)}; {REMEDY}",
            path=str(folder),
        )
    return dict(content)


_VERSIONED: Final[Mapping[str, int]] = MappingProxyType(
    {
        "document_form": 2,
        "lexical": 3,
        "short_query": 3,
        "n_memory_documents": 4,
        "n_word_weights": 5,
        "training_queries": 6,
        "vector_field": 7,
        "short_lexical": 8,
        "short_row_weight": 9,
        "mean_vector": 10,
        "repeated_queries": 11,
    }
)
"""Entries that decide the format version, with the version that each needs."""


def _version_of(content: Mapping[str, Any]) -> int:
    return max((version for name, version in _VERSIONED.items() if name in content), default=1)


def _entry(manifest: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return ``manifest[key]``; raises `ArtifactError` if it is missing or not exactly of the type ``kind``."""
    value = manifest.get(key)
    if type(value) is not kind:
        raise ArtifactError(f"{MANIFEST}: {key!r} is {str(value)[:40]!r} where {kind.__name__} is expected; {REMEDY}")
    return value


def _read_capped(path: Path) -> bytes:
    try:
        descriptor = _open_regular(path)
    except FileNotFoundError as error:
        message = f"{str(path.parent)!r} holds no model (no {MANIFEST}); give a folder that `ssi train --model` wrote"
        raise ArtifactError(message, path=str(path.parent)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_MANIFEST_BYTES:
            message = f"{str(path)!r} has {size} bytes, at most {MAX_MANIFEST_BYTES} are read; {REMEDY}"
            raise ArtifactError(message, path=str(path))
        return os.pread(descriptor, MAX_MANIFEST_BYTES + 1, 0)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}; {REMEDY}", path=str(path)) from error
    finally:
        os.close(descriptor)


def _plain(value: object) -> Any:
    """Return ``value`` converted for JSON; see `sealed`."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise ArtifactError(
        f"a value of type {type(value).__name__} cannot be stored in {MANIFEST}; give numbers, text or lists"
    )
