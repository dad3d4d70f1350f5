"""The two files of a model folder, readable JSON and arrays: one spelling of each, and every byte checked on reading.

``manifest.json`` is accepted only if writing what was read gives the same bytes; its ``model_id`` is the SHA-256 of all
the rest. So a changed byte is noticed wherever it stands, white space and order of keys included.

The arrays lie in one safetensors file: written as a stream, hashed, and read back as a memory map. The layout is
safetensors' own (a test reads each file with that library, byte for byte what it would write itself). It is spelt out
here because the library neither maps arrays without a copy, nor writes without one, nor bounds what an untrusted header
may cost: measured, a 33 MB header takes it 10 s and 1.2 GB.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from reranker.arrays import AnyArray
from reranker.errors import ArtifactError

FORMAT: Final = "ssi-model"
FORMAT_VERSIONS: Final = (1, 2, 3, 4, 5)
"""1: Vd, what every program reads. 2: another ``document_form``. 3: ``lexical`` settings, of any form, or a
``short_query`` with a U of its own. 4: a memory of queries, of ``n_memory_documents``. 5: ``n_word_weights`` weights of
query words. A program that does not know a version refuses it."""
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 1 << 20
REMEDY: Final = "the model is damaged or not ours: copy it again from where it was trained"
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_TENSORS: Final = 64
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}

_CHUNK_BYTES = 1 << 20
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

T = TypeVar("T")
Tensors = Mapping[str, AnyArray]


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with its ``model_id``.

    Values that JSON does not know are written as what they are closest to: numpy scalars and arrays as numbers and
    lists, tuples as lists, paths as text, NaN and infinities as null. `ArtifactError` is raised if a value has no such
    form, or the manifest would be larger than `MAX_MANIFEST_BYTES`.
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
    """Return the one spelling of a manifest: indented, keys sorted, ASCII."""
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a model folder after checking every byte of it, and its format version.

    The arrays are not read. `ArtifactError` is raised if there is none, or it is too large, damaged, of another format
    or of a later version.
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
        raise ArtifactError(f"{MANIFEST} has another content than its model id says; {REMEDY}")
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
    if version != _version_of(content):
        entries = [name for name in ("document_form", "lexical", "n_memory_documents") if name in content]
        raise ArtifactError(
            f"{str(folder)!r} has format version {version} and the entries {', '.join(entries) or 'of version 1'}, "
            f"which make it version {_version_of(content)}; {REMEDY}"
        )
    return dict(content)


def _version_of(content: Mapping[str, Any]) -> int:
    """Return the format version that a manifest's entries need."""
    if "n_word_weights" in content:
        return 5
    if "n_memory_documents" in content:
        return 4
    return 3 if "lexical" in content or "short_query" in content else 2 if "document_form" in content else 1


def entry(manifest: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return ``manifest[key]``, which must be of exactly the type ``kind``.

    `ArtifactError` is raised if it is missing or of another type.
    """
    value = manifest.get(key)
    if type(value) is not kind:
        raise ArtifactError(f"{MANIFEST}: {key!r} is {str(value)[:40]!r} where {kind.__name__} is expected; {REMEDY}")
    return value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where one array lies in a file: its type, shape and byte range."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def chunks_of(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file that holds ``tensors``: the header, then each array in pieces, without a copy.

    Equal arrays give equal bytes: the order is that of safetensors (wider types first, floats before integers, then by
    name). `ArtifactError` is raised if an array has a type that the format does not hold.
    """
    stored: dict[str, AnyArray] = {}
    for name, array in tensors.items():
        stored[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored[name].dtype not in _NAMES:
            kinds = ", ".join(map(str, _NAMES))
            raise ArtifactError(f"the array {name!r} is {array.dtype}; a model file holds {kinds}")
    order = sorted(stored, key=lambda name: (-stored[name].itemsize, stored[name].dtype.kind, name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + stored[name].nbytes
        header[name] = {
            "dtype": _NAMES[stored[name].dtype],
            "shape": list(stored[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        flat = stored[name].reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _CHUNK_BYTES):
            yield flat[start : start + _CHUNK_BYTES].data


def digest_of(tensors: Tensors) -> tuple[str, int]:
    """Return (SHA-256 in hexadecimal, size in bytes) of the file that would hold ``tensors``."""
    digest, n_bytes = hashlib.sha256(), 0
    for chunk in chunks_of(tensors):
        digest.update(chunk)
        n_bytes += len(chunk)
    return digest.hexdigest(), n_bytes


def open_regular(path: Path) -> int:
    """Return a descriptor to read a regular file; links, pipes and devices are refused without being followed.

    `FileNotFoundError` is raised if there is no such file, `ArtifactError` if it is not a regular file or cannot be
    opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        message = f"{str(path)!r} cannot be opened as a plain file ({error.strerror}); links are not followed: {REMEDY}"
        raise ArtifactError(message, path=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{str(path)!r} is not a regular file; {REMEDY}", path=str(path))
    return descriptor


def read_header(descriptor: int, n_bytes: int) -> dict[str, TensorSpec]:
    """Return where each array of an open file of ``n_bytes`` lies, after checking that all of it fits together.

    `ArtifactError` is raised if the header is larger than `MAX_HEADER_BYTES`, is not JSON of the format, names more
    than `MAX_TENSORS` arrays, or its shapes and ranges do not tile the file exactly.
    """
    prefix = os.pread(descriptor, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > MAX_HEADER_BYTES or 8 + length > n_bytes:
        raise ArtifactError(
            f"a tensor file of {n_bytes} bytes announces a header of {length}; at most {MAX_HEADER_BYTES} are read: "
            f"{REMEDY}"
        )
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        specs = {name: _spec(entry) for name, entry in header.items()} if len(header) <= MAX_TENSORS else {}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"a tensor file's header cannot be read ({type(error).__name__}); {REMEDY}") from error
    if len(specs) != len(header):
        raise ArtifactError(f"a tensor file names {len(header)} arrays; at most {MAX_TENSORS} are read: {REMEDY}")
    end = 0
    for spec in sorted(specs.values(), key=lambda spec: (spec.start, spec.stop)):
        if spec.start != end or spec.stop - spec.start != math.prod(spec.shape) * spec.dtype.itemsize:
            message = f"an array of shape {spec.shape} does not fit its {spec.stop - spec.start} bytes"
            raise ArtifactError(f"{message}; {REMEDY}")
        end = spec.stop
    if 8 + length + end != n_bytes:
        raise ArtifactError(f"a tensor file has {n_bytes} bytes where its header tells of {8 + length + end}; {REMEDY}")
    return specs


def file_sha256(descriptor: int) -> str:
    """Return the SHA-256 of an open file in hexadecimal."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_tensors(descriptor: int, specs: Mapping[str, TensorSpec], n_bytes: int) -> dict[str, AnyArray]:
    """Return the arrays of an open, checked file as read-only views of one memory map.

    The map outlives the descriptor, and the file's name: a model being served stays whole while it is replaced.
    """
    mapped = mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ)
    data = n_bytes - max((spec.stop for spec in specs.values()), default=0)
    return {
        name: np.frombuffer(mapped, spec.dtype, math.prod(spec.shape), data + spec.start).reshape(spec.shape)
        if spec.stop > spec.start
        else np.zeros(spec.shape, spec.dtype)
        for name, spec in specs.items()
    }


def _read_capped(path: Path) -> bytes:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError as error:
        message = f"{str(path.parent)!r} holds no model (no {MANIFEST}); give a folder that `ssi train --model` wrote"
        raise ArtifactError(message, path=str(path.parent)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{str(path)!r} has {size} bytes, at most {MAX_MANIFEST_BYTES} are read; {REMEDY}")
        return os.pread(descriptor, MAX_MANIFEST_BYTES + 1, 0)
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
        f"a value of type {type(value).__name__} cannot be kept in {MANIFEST}; give numbers, text, lists"
    )


def _spec(entry: Mapping[str, Any]) -> TensorSpec:
    """Return one header entry; raises any of the errors of a malformed one, which `read_header` names."""
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    numbers = (start, stop, *shape)
    if set(entry) != {"dtype", "shape", "data_offsets"} or len(shape) > 4:
        raise ValueError("entry")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("number")
    return TensorSpec(DTYPES[entry["dtype"]], shape, start, stop)
