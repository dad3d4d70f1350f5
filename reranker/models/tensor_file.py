"""The file of a model's arrays, in the safetensors layout: streamed to disk, hashed, and memory-mapped.

The layout is implemented here because the safetensors library cannot map arrays or write them without a copy, and does
not limit the cost of an untrusted header. A test reads each file with the library and compares it, byte for byte,
with what the library would write.
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
from typing import Any, Final

import numpy as np

from reranker.arrays import AnyArray
from reranker.errors import ArtifactError


def tensor_file_name(sha256: str) -> str:
    """Return the name of the tensor file with this hash."""
    return f"tensors-{sha256[:12]}.safetensors"


REMEDY: Final = "the model is damaged or not ours: copy it again from where it was trained"


MAX_HEADER_BYTES: Final = 64 * 1024


MAX_TENSORS: Final = 64


DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
"""Types of arrays by their names in the file, in the order in which safetensors stores them."""


_CHUNK_BYTES = 1 << 20


_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


Tensors = Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """Type, shape and byte range of one array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def chunks_of(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file that holds ``tensors``: the header, then each array in pieces, without a copy.

    Equal arrays give equal bytes. The order of arrays is that of safetensors: by type, in the order of `DTYPES`,
    then by name. `ArtifactError` is raised if an array has a type that the format does not support.
    """
    stored: dict[str, AnyArray] = {}
    for name, array in tensors.items():
        stored[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored[name].dtype not in _NAMES:
            kinds = ", ".join(map(str, _NAMES))
            raise ArtifactError(f"the array {name!r} is {array.dtype}; a model file holds {kinds}")
    place = {dtype: number for number, dtype in enumerate(DTYPES.values())}
    order = sorted(stored, key=lambda name: (place[stored[name].dtype], name))
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


def _open_regular(path: Path) -> int:
    """Return a descriptor of a regular file; raises `FileNotFoundError`, or `ArtifactError` for links and devices."""
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


def _read_header(descriptor: int, n_bytes: int) -> dict[str, _TensorSpec]:
    """Return the position of each array of an open file of ``n_bytes``, after validating the header.

    `ArtifactError` is raised if the header is larger than `MAX_HEADER_BYTES`, is not JSON of the format, names more
    than `MAX_TENSORS` arrays, or its byte ranges do not cover the file exactly.
    """
    prefix = os.pread(descriptor, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > MAX_HEADER_BYTES or 8 + length > n_bytes:
        raise ArtifactError(
            f"the header of a tensor file of {n_bytes} bytes is said to have {length} bytes; at most "
            f"{MAX_HEADER_BYTES} are read: {REMEDY}"
        )
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        specs = {name: _spec(part) for name, part in header.items()} if len(header) <= MAX_TENSORS else {}
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
        raise ArtifactError(f"a tensor file has {n_bytes} bytes where its header requires {8 + length + end}; {REMEDY}")
    return specs


def _map_tensors(descriptor: int, specs: Mapping[str, _TensorSpec], n_bytes: int) -> dict[str, AnyArray]:
    """Return the arrays of a validated file as read-only views of one memory map; it outlives the descriptor."""
    mapped = mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ)
    data = n_bytes - max((spec.stop for spec in specs.values()), default=0)
    return {
        name: np.frombuffer(mapped, spec.dtype, math.prod(spec.shape), data + spec.start).reshape(spec.shape)
        if spec.stop > spec.start
        else np.zeros(spec.shape, spec.dtype)
        for name, spec in specs.items()
    }


def _spec(entry: Mapping[str, Any]) -> _TensorSpec:
    """Return one header entry; a malformed one raises any of the errors that `_read_header` handles."""
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    numbers = (start, stop, *shape)
    if set(entry) != {"dtype", "shape", "data_offsets"} or len(shape) > 4:
        raise ValueError("entry")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("number")
    return _TensorSpec(DTYPES[entry["dtype"]], shape, start, stop)
