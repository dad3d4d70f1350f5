"""The rule for document and query ids, and a compact memory of those already seen."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from reranker.formats.rejects import RecordError

MAX_ID_BYTES = 512
"""Longest id in UTF-8: the limit of Elasticsearch and OpenSearch, where one longer id fails a whole bulk request."""

_MAX_RECENT = 2**17


def check_id(value: object, what: str = "id") -> str:
    """Return an id as str: a string of 1 to 512 bytes of UTF-8, or a whole number.

    Raises
    ------
    RecordError
        For anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
        return str(value)
    if not isinstance(value, str):
        raise RecordError("id_type", f"the {what} is {type(value).__name__}: it must be a string or a whole number")
    try:
        n_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise RecordError(
            "id_surrogate", f"the {what} {value!r} has a lone surrogate: it must be valid Unicode"
        ) from None
    if n_bytes == 0:
        raise RecordError("id_empty", f"the {what} is empty: it must have 1 to {MAX_ID_BYTES} bytes")
    if n_bytes > MAX_ID_BYTES:
        reason = f"the {what} has {n_bytes} bytes of UTF-8: at most {MAX_ID_BYTES} are accepted by the search engines"
        raise RecordError("id_too_long", f"{reason}; use a hash of it")
    return value


class SeenIds:
    """Which ids have been seen, in 8 bytes each.

    Ids are kept as 64-bit BLAKE2b hashes in sorted arrays that double in size, so two different ids are taken for one
    with probability n²/2⁶⁵: 3 in a million for ten million ids.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._runs: list[npt.NDArray[np.uint64]] = []

    def add(self, id_: str) -> bool:
        """Remember an id; return whether it is new."""
        key = int.from_bytes(blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        if key in self._recent or any(_holds(run, np.uint64(key)) for run in self._runs):
            return False
        self._recent.add(key)
        if len(self._recent) >= _MAX_RECENT:
            self._flush()
        return True

    def __len__(self) -> int:
        """Return the number of different ids seen."""
        return len(self._recent) + sum(map(len, self._runs))

    def _flush(self) -> None:
        run = np.sort(np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent)))
        while self._runs and len(self._runs[-1]) <= len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        self._recent = set()


def _holds(run: npt.NDArray[np.uint64], key: np.uint64) -> bool:
    place = int(run.searchsorted(key))
    return place < len(run) and bool(run[place] == key)
