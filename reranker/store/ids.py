"""Document ids as 64-bit keys, hashed and compared a thousand at a time.

A key is the sum over the bytes of an id of a pseudo-random number drawn for (position, byte), mixed with the length:
additive Zobrist hashing, which numpy computes for all ids of a request at once (a Python loop over a cryptographic
hash takes longer than scoring the documents). A key only proposes a row: the stored id is always compared byte by
byte, so that a collision, by accident or by design, costs time and never gives another document's vector.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reranker.errors import InputError

MAX_ID_BYTES = 512
"""Longest id that Elasticsearch and OpenSearch accept."""

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class IdBlock(NamedTuple):
    """Ids laid end to end.

    Parameters
    ----------
    buffer : (n_bytes,) uint8
        UTF-8 of all ids, one after the other.
    offsets : (n + 1,) int64
        Id i is ``buffer[offsets[i]:offsets[i + 1]]``.
    """

    buffer: Bytes
    offsets: Int64s

    @property
    def lengths(self) -> Int64s:
        """Bytes of each id, (n,) int64."""
        return self.offsets[1:] - self.offsets[:-1]


def _mix(values: UInt64s) -> UInt64s:
    """Return splitmix64's finaliser of each value (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _table() -> UInt64s:
    """Return the number of each (position, byte), (512 * 256,) uint64: fixed for the store's format version 1."""
    counter = np.arange(1, MAX_ID_BYTES * 256 + 1, dtype=np.uint64)
    return _mix(counter * np.uint64(0x9E3779B97F4A7C15))


def encode_ids(ids: Sequence[str]) -> IdBlock:
    """Return the ids as UTF-8 laid end to end; a lone surrogate is kept, since engines accept it in an id."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in ids]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
    return IdBlock(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets)


def check_ids(block: IdBlock) -> None:
    """Raise `InputError` for an id that no engine could have given: empty, or over 512 bytes."""
    lengths = block.lengths
    bad = np.flatnonzero((lengths == 0) | (lengths > MAX_ID_BYTES))
    if len(bad):
        first = int(bad[0])
        raise InputError(
            f"the id number {first} of the batch has {int(lengths[first])} bytes; an id has 1 to {MAX_ID_BYTES} bytes "
            "of UTF-8: shorten it in the source",
            position=first,
        )


def hash_ids(block: IdBlock) -> UInt64s:
    """Return the key of each id, (n,) uint64."""
    lengths = block.lengths
    position = np.arange(len(block.buffer), dtype=np.int64) - np.repeat(block.offsets[:-1], lengths)
    numbers = _table()[(position % MAX_ID_BYTES) * 256 + block.buffer]
    # Differences of a running sum, not `np.add.reduceat`: that one gives a wrong value for an empty id.
    running = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=running[1:])
    return _mix(running[block.offsets[1:]] - running[block.offsets[:-1]] + lengths.astype(np.uint64))


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return ``concatenate([arange(s, s + l) for s, l in zip(starts, lengths)])`` without the loop."""
    ends: Int64s = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Int64s = np.arange(total, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return places


def take_ids(block: IdBlock, rows: Int64s) -> IdBlock:
    """Return the ids at ``rows``, in that order, as a block of their own."""
    starts = block.offsets[rows]
    lengths = block.offsets[rows + 1] - starts
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return IdBlock(block.buffer[ranges(starts, lengths)], offsets)


def same_ids(a: IdBlock, a_rows: Int64s, b: IdBlock, b_rows: Int64s) -> npt.NDArray[np.bool_]:
    """Return whether id ``a_rows[i]`` of ``a`` equals id ``b_rows[i]`` of ``b``, (n,) bool."""
    a_starts, b_starts = a.offsets[a_rows], b.offsets[b_rows]
    a_lengths, b_lengths = a.offsets[a_rows + 1] - a_starts, b.offsets[b_rows + 1] - b_starts
    same: npt.NDArray[np.bool_] = a_lengths == b_lengths
    kept = np.flatnonzero(same)
    lengths = a_lengths[kept]
    differs = a.buffer[ranges(a_starts[kept], lengths)] != b.buffer[ranges(b_starts[kept], lengths)]
    running = np.zeros(len(differs) + 1, dtype=np.int64)
    np.cumsum(differs, out=running[1:])
    ends = np.cumsum(lengths)
    same[kept] = running[ends] == running[ends - lengths]
    return same


def decode_ids(block: IdBlock) -> list[str]:
    """Return the ids as text."""
    raw = block.buffer.tobytes()
    bounds = block.offsets.tolist()
    return [raw[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
