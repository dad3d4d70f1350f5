"""The manifest of a model folder: readable JSON in one canonical spelling, so that every byte of it is covered.

``model_id`` is the SHA-256 of all the rest. A manifest is accepted only if writing what was read gives the same
bytes, so a changed byte is noticed wherever it stands, white space and order of keys included.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from reranker.artifacts.tensors import REMEDY, open_regular
from reranker.errors import ArtifactError

FORMAT: Final = "ssi-model"
FORMAT_VERSIONS: Final = (1, 2)
"""1: Vd, what every program reads. 2: another ``document_form``, which a program that knows 1 alone must refuse."""
FILE_NAME: Final = "manifest.json"
MAX_BYTES: Final = 1 << 20

T = TypeVar("T")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with its ``model_id``.

    Values that JSON does not know are written as what they are closest to: numpy scalars and arrays as numbers and
    lists, tuples as lists, paths as text, NaN and infinities as null.

    Raises
    ------
    ArtifactError
        If a value has no such form, or the manifest would be larger than `MAX_BYTES`.
    """
    version = FORMAT_VERSIONS["document_form" in content]
    plain: dict[str, Any] = _plain({**content, "format": FORMAT, "format_version": version})
    plain.pop("model_id", None)
    manifest = {**plain, "model_id": hashlib.sha256(to_bytes(plain)).hexdigest()}
    size = len(to_bytes(manifest))
    if size > MAX_BYTES:
        raise ArtifactError(
            f"the manifest would have {size} bytes, at most {MAX_BYTES} can be read; keep less in training and metrics"
        )
    return manifest


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a manifest: indented, keys sorted, ASCII."""
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a model folder after checking every byte of it, and its format version.

    Raises
    ------
    ArtifactError
        If there is none, or it is too large, damaged, of another format or of a later version.
    """
    content = parse(_read_capped(folder / FILE_NAME))
    if content.get("format") != FORMAT:
        raise ArtifactError(
            f"{str(folder)!r} is of format {str(content.get('format'))[:40]!r}, not {FORMAT!r}; {REMEDY}"
        )
    version = content.get("format_version")
    if version not in FORMAT_VERSIONS or type(version) is not int:
        raise ArtifactError(
            f"{str(folder)!r} has format version {repr(version)[:40]}; this program reads "
            f"{' and '.join(map(str, FORMAT_VERSIONS))}: install the version of the program that wrote it, or a later "
            f"one",
            version=str(version)[:40],
        )
    if (version == FORMAT_VERSIONS[1]) != ("document_form" in content):
        raise ArtifactError(
            f"{str(folder)!r} has format version {version} {'without' if version > 1 else 'with'} a document form; "
            f"{REMEDY}"
        )
    return content


def parse(data: bytes) -> dict[str, Any]:
    """Return the object of a manifest's bytes, its ``model_id`` verified.

    Raises
    ------
    ArtifactError
        If the bytes are not the one spelling of a manifest, or its id is not that of its content.
    """
    try:
        content = json.loads(data)
        canonical = isinstance(content, dict) and to_bytes(content) == data
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{FILE_NAME} cannot be read ({type(error).__name__}); {REMEDY}") from error
    if not canonical:
        raise ArtifactError(f"{FILE_NAME} is not as it was written (it was edited, or a byte has changed); {REMEDY}")
    rest = {key: value for key, value in content.items() if key != "model_id"}
    expected = hashlib.sha256(to_bytes(rest)).hexdigest()
    if content.get("model_id") != expected:
        raise ArtifactError(f"{FILE_NAME} has another content than its model id says; {REMEDY}")
    return dict(content)


def entry(manifest: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return ``manifest[key]``, which must be of exactly the type ``kind``.

    Raises
    ------
    ArtifactError
        If it is missing or of another type.
    """
    value = manifest.get(key)
    if type(value) is not kind:
        raise ArtifactError(f"{FILE_NAME}: {key!r} is {str(value)[:40]!r} where {kind.__name__} is expected; {REMEDY}")
    return value


def _read_capped(path: Path) -> bytes:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError as error:
        message = f"{str(path.parent)!r} holds no model (no {FILE_NAME}); give a folder that `ssi train --model` wrote"
        raise ArtifactError(message, path=str(path.parent)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_BYTES:
            raise ArtifactError(f"{str(path)!r} has {size} bytes, at most {MAX_BYTES} are read; {REMEDY}")
        return os.pread(descriptor, MAX_BYTES + 1, 0)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error.strerror}; {REMEDY}", path=str(path)) from error
    finally:
        os.close(descriptor)


def _plain(value: object) -> Any:
    """Return ``value`` as JSON has it; see `sealed`."""
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
        f"a value of type {type(value).__name__} cannot be kept in {FILE_NAME}; give numbers, text, lists"
    )
