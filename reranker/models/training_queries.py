"""Keyed hashes of the queries that a model has learned from, so that an evaluation can leave these queries out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from reranker.arrays import Bool, UInt64
from reranker.errors import InputError, ShapeMismatch
from reranker.text.query_keys import query_key

KEY_DIGITS: Final = 32
"""Number of hexadecimal digits of a key: 16 bytes."""
MAX_TRAINING_QUERIES: Final = 5_000_000
"""Largest number of hashes in a model (40 MB). A model that has learned from more queries keeps none."""
_TEXT: Final = b"query text"
_DOCUMENT: Final = b"document id"


@dataclass(frozen=True, eq=False)
class TrainingQueries:
    """The queries that a model has learned from: query texts, and ids of documents that are queries (links).

    Only hashes are kept. A query cannot be computed from its hash, but anyone who has the model can test whether a
    guessed query is among them, because the key is stored in the model. The key differs between models, so one table of
    hashed guesses does not serve for several models.

    Raises
    ------
    InputError
        If the key or the order of the hashes is invalid, or there are more than `MAX_TRAINING_QUERIES`.
    ShapeMismatch
        If the hashes are not one row of uint64.
    """

    key: str
    """Key of the hash function, `KEY_DIGITS` hexadecimal digits in lower case."""
    hashes: UInt64
    """(n,) uint64, ascending, without duplicates: 8-byte BLAKE2b of `query_key` of a text, or of a document id."""

    def __post_init__(self) -> None:
        check_hashes(self.key, self.hashes, "training queries")
        if len(self.hashes) > MAX_TRAINING_QUERIES:
            raise InputError(
                f"the model has hashes of {len(self.hashes):,} training queries, at most {MAX_TRAINING_QUERIES:,} are "
                "kept: leave them out"
            )

    def __len__(self) -> int:
        return len(self.hashes)

    def to_json(self) -> dict[str, str | int]:
        """Return the manifest's entry."""
        return {"key": self.key, "n": len(self)}

    @classmethod
    def of(
        cls, key: str, texts: Iterable[str], documents: Iterable[str], earlier: TrainingQueries | None = None
    ) -> TrainingQueries | None:
        """Return the hashes of some queries; None if there are more than `MAX_TRAINING_QUERIES`.

        Parameters
        ----------
        key
            Key of the hash function; ignored if there are earlier queries, which have a key.
        texts
            Query texts.
        documents
            Ids of documents that are queries.
        earlier
            Queries of the model from which the training started.
        """
        key = key if earlier is None else earlier.key
        parts = [hashes_of_texts(key, texts), _hashes(key, _DOCUMENT, documents)]
        if earlier is not None:
            parts.append(earlier.hashes)
        hashes = np.unique(np.concatenate(parts))
        return cls(key, hashes) if len(hashes) <= MAX_TRAINING_QUERIES else None

    def have_texts(self, texts: Sequence[str]) -> Bool:
        """Return whether the model has learned from each query text, (n,) bool."""
        return np.isin(hashes_of_texts(self.key, texts), self.hashes)

    def have_documents(self, ids: Sequence[str]) -> Bool:
        """Return whether the model has learned from each document as a query, (n,) bool."""
        return np.isin(_hashes(self.key, _DOCUMENT, ids), self.hashes)


def check_hashes(key: str, hashes: UInt64, name: str) -> None:
    """Raise an error unless a key and the ascending hashes of the queries called ``name`` are as documented above."""
    if len(key) != KEY_DIGITS or set(key) - set("0123456789abcdef"):
        raise InputError(f"the key of the {name} is {key!r:.80}: it must have {KEY_DIGITS} hexadecimal digits")
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise ShapeMismatch(
            f"the hashes of the {name} are {hashes.dtype} of shape {hashes.shape}: give one row of uint64"
        )
    if not (hashes[:-1] < hashes[1:]).all():
        raise InputError(f"the hashes of the {name} are not in ascending order: sort them, each once")


def hashes_of_texts(key: str, texts: Iterable[str]) -> UInt64:
    """Return the hash of the `query_key` of each query text, (n,) uint64."""
    return _hashes(key, _TEXT, map(query_key, texts))


def _hashes(key: str, kind: bytes, names: Iterable[str]) -> UInt64:
    """Return the hashes of names, (n,) uint64; ``kind`` keeps equal texts and ids apart."""
    secret = bytes.fromhex(key)
    digests = (
        hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=secret, person=kind).digest()
        for name in names
    )
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
