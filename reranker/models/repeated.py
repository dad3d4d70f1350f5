"""Preferences of users for queries that are asked again and again: weights of documents, by the hash of the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from reranker.arrays import AnyArray, Float32, Float64, Int64, UInt64, offsets_of
from reranker.errors import InputError
from reranker.models.training_queries import check_hashes, hashes_of_texts

REPEATED_TYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "hashes": np.dtype("<u8"),
    "offsets": np.dtype("<i8"),
    "ids": np.dtype("u1"),
    "id_offsets": np.dtype("<i8"),
    "weights": np.dtype("<f4"),
}
"""Name and type of each array of `RepeatedQueries.to_arrays`."""


@dataclass(frozen=True, eq=False)
class RepeatedQueries:
    """The preferences p(q, d) of users, for queries that many of them have asked.

    p is added to the score of document d for query q, and is 0 for all other documents and queries. Of a query only the
    hash of its `query_key` is kept, as in `TrainingQueries`: a query cannot be computed from its hash, but anyone who
    has the model can test whether a guessed query is among them.

    Raises
    ------
    InputError
        If a rule stated at a field is broken.
    """

    key: str
    """Key of the hash function, 32 hexadecimal digits in lower case."""
    hashes: UInt64
    """Hash of each query, (n,) uint64, ascending."""
    offsets: Int64
    """Start of the documents of each query, and the end of the last, (n + 1,) int64; every query has a document."""
    documents: tuple[str, ...]
    """Ids of the documents, those of a query ascending."""
    weights: Float32
    """p of each document, (len(documents),) float32, finite and not 0."""
    _place: dict[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_hashes(self.key, self.hashes, "repeated queries")
        n, starts = len(self.hashes), self.offsets
        fits = starts.shape == (n + 1,) and starts[0] == 0 and starts[-1] == len(self.documents) == len(self.weights)
        if not fits or not (np.diff(starts) > 0).all():
            raise InputError("every repeated query must have documents, and every document of one a weight")
        for first, last in pairwise(starts.tolist()):
            ids = self.documents[first:last]
            if not ("" < ids[0] and all(a < b for a, b in pairwise(ids))):
                raise InputError("the documents of a repeated query must be distinct and ascending")
        if not (np.isfinite(self.weights) & (self.weights != 0)).all():
            raise InputError("the weights of repeated queries must be finite and not 0")
        object.__setattr__(self, "_place", {each: place for place, each in enumerate(self.hashes.tolist())})

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.hashes)

    @classmethod
    def of(cls, key: str, preferences: Mapping[str, Mapping[str, float]]) -> RepeatedQueries:
        """Return the preferences of some queries: query text → document id → p. Weights of 0 are left out.

        Two texts with the same `query_key` are one query, and the first of them counts.
        """
        by_hash: dict[int, Mapping[str, float]] = {}
        for number, of_query in zip(hashes_of_texts(key, preferences).tolist(), preferences.values(), strict=True):
            kept = {document: weight for document, weight in of_query.items() if np.float32(weight)}
            if kept:
                by_hash.setdefault(number, kept)
        rows = [sorted(by_hash[number].items()) for number in sorted(by_hash)]
        return cls(
            key,
            np.array(sorted(by_hash), dtype=np.uint64),
            offsets_of([len(row) for row in rows]),
            tuple(document for row in rows for document, _ in row),
            np.array([weight for row in rows for _, weight in row], dtype=np.float32),
        )

    def of_query(self, text: str) -> dict[str, float]:
        """Return document id → p(q, d) of a query text; empty for a query that is not among them."""
        place = self._place.get(int(hashes_of_texts(self.key, [text])[0]))
        if place is None:
            return {}
        part = slice(*self.offsets[place : place + 2].tolist())
        return dict(zip(self.documents[part], self.weights[part].tolist(), strict=True))

    def to_json(self) -> dict[str, str | int]:
        """Return the manifest's entry."""
        return {"key": self.key, "n": len(self)}

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of `REPEATED_TYPES`; ``ids`` are the document ids in UTF-8, one after the other."""
        encoded = [document.encode("utf-8", "surrogatepass") for document in self.documents]
        arrays: tuple[AnyArray, ...] = (
            self.hashes,
            self.offsets,
            np.frombuffer(b"".join(encoded), dtype=np.uint8),
            offsets_of([len(each) for each in encoded]),
            self.weights,
        )
        return {name: np.array(array, kind) for (name, kind), array in zip(REPEATED_TYPES.items(), arrays, strict=True)}

    @classmethod
    def from_arrays(cls, key: str, arrays: Mapping[str, AnyArray]) -> RepeatedQueries:
        """Return the queries of `to_arrays`. Raises `InputError` if the arrays do not fit each other."""
        starts = arrays["id_offsets"].tolist()
        if not starts or starts[0] != 0 or starts[-1] != len(arrays["ids"]) or any(a > b for a, b in pairwise(starts)):
            raise InputError("the offsets of the documents of repeated queries do not fit their ids")
        data = arrays["ids"].tobytes()
        try:
            ids = tuple(data[first:last].decode("utf-8", "surrogatepass") for first, last in pairwise(starts))
        except UnicodeDecodeError as error:
            raise InputError("a document id of the repeated queries is not UTF-8") from error
        return cls(
            key,
            arrays["hashes"].astype(np.uint64),
            arrays["offsets"].astype(np.int64),
            ids,
            arrays["weights"].astype(np.float32),
        )


def preferences_of(preferred: Mapping[str, float], ids: Sequence[str]) -> Float64:
    """Return p(q, d) of some documents, (n,) float64, given the preferences of a query."""
    return np.array([preferred.get(identifier, 0.0) for identifier in ids], dtype=np.float64)
