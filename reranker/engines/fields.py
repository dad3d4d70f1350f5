"""The fields of one encoder version in an index: names, mapping and values. Pure.

A version's fields are called ``ssi_<first 12 hex digits of the encoder id>_<part>``:

=============== ======================================== ==============================
part            holds                                    mapping
=============== ======================================== ==============================
``src``         hash of the text the rest was made from  ``keyword``
``vec``         Vd, packed, base64                       ``binary`` (kept in _source only)
``terms``       d's word ids and weights, packed, base64 ``binary``
``vec_dense``   Vd for the engine to compute with        ``dense_vector``, ``knn_vector``
``terms_sparse`` d's words and weights for the engine    ``sparse_vector``, ``rank_features``
=============== ======================================== ==============================

``src`` is in every version: a document without it has no vector of that version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.engines.base import Capabilities
from reranker.errors import ConfigError, InputError, ShapeMismatch, Unsupported
from reranker.kernels.packing import pack_rows, pack_vectors, to_text
from reranker.kernels.quantisation import Quantisation

ROUTES = ("beside", "fetch", "inside")
"""Ways to serve a version: vectors beside the reranker, fetched with the hits, or computed with in the engine."""
PARTS = ("src", "vec", "terms", "vec_dense", "terms_sparse")
ID_DIGITS = 12
"""Hex digits of the encoder id in a field name."""
_SIGNIFICANT_DIGITS = 7
"""Digits of a vector's number in JSON: float32 has 7.2; every digit costs bulk time."""


def field_prefix(encoder_id: str) -> str:
    """Return what all field names of an encoder version begin with: ``ssi_<12 hex>_``.

    Raises
    ------
    InputError
        If ``encoder_id`` does not begin with 12 hex digits.
    """
    head = encoder_id[:ID_DIGITS]
    if len(head) < ID_DIGITS or any(digit not in "0123456789abcdef" for digit in head):
        raise InputError(
            f"encoder id {encoder_id!r:.80} is not legal: it begins with {ID_DIGITS} lower-case hex digits"
        )
    return f"ssi_{head}_"


def field_name(encoder_id: str, part: str) -> str:
    """Return the name of one field of an encoder version.

    Parameters
    ----------
    encoder_id : str
        Hex; the first 12 digits count.
    part : {'src', 'vec', 'terms', 'vec_dense', 'terms_sparse'}

    Raises
    ------
    InputError
        Another part, or an id that is not hex.
    """
    if part not in PARTS:
        raise InputError(f"field part {part!r} is not one of {', '.join(PARTS)}")
    return field_prefix(encoder_id) + part


def version_fields(
    encoder_id: str, dims: int, capabilities: Capabilities, routes: Collection[str] = ("fetch",)
) -> dict[str, Any]:
    """Return the ``properties`` that an encoder version needs for the routes wanted.

    Parameters
    ----------
    encoder_id : str
    dims : int
        N, numbers of Vd.
    capabilities : Capabilities
        Of the engine that gets the mapping.
    routes : collection of {'beside', 'fetch', 'inside'}
        ``beside`` needs no field but the hash; ``inside`` needs native vectors and words.

    Raises
    ------
    ConfigError
        An unknown route.
    Unsupported
        A route whose field types this engine lacks, or more dimensions than it takes.
    """
    _check_routes(routes)
    properties: dict[str, Any] = {field_name(encoder_id, "src"): {"type": "keyword"}}
    if "fetch" in routes:
        properties |= {field_name(encoder_id, part): {"type": "binary"} for part in ("vec", "terms")}
    if _is_native(routes):
        properties |= _native_fields(encoder_id, dims, capabilities)
    return properties


def _native_fields(encoder_id: str, dims: int, capabilities: Capabilities) -> dict[str, Any]:
    if not capabilities.dense_vector or not capabilities.sparse_terms:
        missing = "stored vectors" if not capabilities.dense_vector else "words with weights"
        raise Unsupported(
            f"{capabilities.kind} {capabilities.version} has no field type for {missing}, which the route "
            "'inside' needs: use --routes fetch or beside",
            engine=capabilities.kind,
        )
    if dims > capabilities.max_dims:
        raise Unsupported(
            f"vectors of {dims} numbers are more than {capabilities.kind} takes ({capabilities.max_dims}): "
            "train with a smaller --dim, or use --routes fetch or beside",
            engine=capabilities.kind,
        )
    dense: dict[str, Any] = (
        {"type": "dense_vector", "dims": dims, "index": False}
        if capabilities.dense_vector == "dense_vector"
        else {"type": capabilities.dense_vector, "dimension": dims}
    )
    return {
        field_name(encoder_id, "vec_dense"): dense,
        field_name(encoder_id, "terms_sparse"): {"type": capabilities.sparse_terms},
    }


@dataclass(frozen=True, slots=True)
class FieldWriter:
    """Turns encoded documents into the fields of a version.

    Parameters
    ----------
    encoder_id : str
    quantisation : {'float32', 'float16', 'int8'}
        The encoder's: how ``vec`` and ``terms`` are packed.
    routes : collection of route names
        As in `version_fields`.
    """

    encoder_id: str
    quantisation: Quantisation = "float32"
    routes: tuple[str, ...] = ("fetch",)

    def __post_init__(self) -> None:
        _check_routes(self.routes)

    def fields(
        self,
        vectors: npt.NDArray[np.float32],
        rows: sp.csr_matrix,
        source_hashes: list[str],
        has_text: npt.NDArray[np.bool_],
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each document; one without text gets its hash alone.

        Parameters
        ----------
        vectors : (n, N) float32
            Vd of each document.
        rows : (n, N_TERM_IDS) csr float32
            tf-idf row of each document.
        source_hashes : list of str
            ``_src`` of each document.
        has_text : (n,) bool
            False where there was no text to encode.

        Raises
        ------
        ShapeMismatch
            Unless there are n of each.
        """
        n = len(source_hashes)
        if not n == len(vectors) == rows.shape[0] == len(has_text):
            raise ShapeMismatch(f"{len(vectors)} vectors, {rows.shape[0]} rows, {n} hashes, {len(has_text)} flags")
        packed_vectors = pack_vectors(vectors, self.quantisation) if "fetch" in self.routes else [b""] * n
        packed_rows = pack_rows(rows, self.quantisation) if "fetch" in self.routes else [b""] * n
        names = {part: field_name(self.encoder_id, part) for part in PARTS}
        for place in range(n):
            values: dict[str, Any] = {names["src"]: source_hashes[place]}
            if has_text[place] and "fetch" in self.routes:
                values[names["vec"]] = to_text(packed_vectors[place])
                values[names["terms"]] = to_text(packed_rows[place])
            if has_text[place] and _is_native(self.routes):
                start, end = rows.indptr[place], rows.indptr[place + 1]
                values[names["vec_dense"]] = dense_value(vectors[place])
                values[names["terms_sparse"]] = sparse_value(rows.indices[start:end], rows.data[start:end])
            yield values


def document_fields(
    encoder_id: str,
    vector: npt.NDArray[np.float32],
    term_ids: npt.NDArray[np.int32],
    term_weights: npt.NDArray[np.float32],
    source_hash: str,
    *,
    quantisation: Quantisation = "float32",
    routes: Collection[str] = ("fetch",),
) -> dict[str, Any]:
    """Return the fields of one encoded document; `FieldWriter` does many at once, and faster."""
    row = sp.csr_matrix((term_weights, term_ids, [0, len(term_ids)]), shape=(1, 2**31 - 1))
    writer = FieldWriter(encoder_id, quantisation, tuple(routes))
    return next(writer.fields(vector[None, :], row, [source_hash], np.ones(1, bool)))


def dense_value(vector: npt.NDArray[np.float32]) -> list[float]:
    """Return a vector as JSON numbers of at most 7 significant digits, which is all a float32 has."""
    return [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in vector.tolist()]


def sparse_value(term_ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return words and weights as JSON; a weight of 0 adds nothing to q·d, and engines refuse it."""
    return {
        f"t{term}": float(f"{weight:.{_SIGNIFICANT_DIGITS}g}")
        for term, weight in zip(term_ids.tolist(), weights.tolist(), strict=True)
        if weight > 0
    }


def _is_native(routes: Collection[str]) -> bool:
    return "inside" in routes


def _check_routes(routes: Collection[str]) -> None:
    for route in routes:
        if route not in ROUTES:
            raise ConfigError(f"route {route!r} is not one of {', '.join(ROUTES)}")
