"""The fields of one encoder version in an index: names, mapping and values. Pure.

A version's fields are called ``ssi_<first 12 hex digits of the encoder id>_<part>``:

=============== ======================================== ==============================
part            holds                                    mapping
=============== ======================================== ==============================
``src``         hash of the text the rest was made from  ``keyword``
``vec``         Vd, packed, base64                       ``binary`` (kept in _source only)
``terms``       d's word ids and weights, packed, base64 ``binary``
native parts    Vd and d for the engine to compute with  see `reranker.engines.native`
=============== ======================================== ==============================

``src`` is in every version: a document without it has no vector of that version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.engines.base import Capabilities
from reranker.engines.native import NATIVE_PARTS, NativeFields, native_mapping, native_parts, native_values
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.kernels.packing import pack_rows, pack_vectors, to_text
from reranker.kernels.quantisation import Quantisation

ROUTES = ("beside", "fetch", "inside", "first-stage")
"""Ways to serve a version: vectors beside the reranker, fetched with the hits, or computed with in the engine; and
``first-stage``, by which documents are found that share no word with the query."""
PARTS = ("src", "vec", "terms", *NATIVE_PARTS)
ID_DIGITS = 12
"""Hex digits of the encoder id in a field name."""


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
    part : str
        One of `PARTS`.

    Raises
    ------
    InputError
        Another part, or an id that is not hex.
    """
    if part not in PARTS:
        raise InputError(f"field part {part!r} is not one of {', '.join(PARTS)}")
    return field_prefix(encoder_id) + part


def version_fields(
    encoder_id: str,
    dims: int,
    capabilities: Capabilities,
    routes: Collection[str] = ("fetch",),
    *,
    norm: float = 1.0,
) -> dict[str, Any]:
    """Return the ``properties`` that an encoder version needs for the routes wanted.

    Parameters
    ----------
    encoder_id : str
    dims : int
        N, numbers of Vd.
    capabilities : Capabilities
        Of the engine that gets the mapping.
    routes : collection of {'beside', 'fetch', 'inside', 'first-stage'}
        ``beside`` needs no field but the hash; the last two need native vectors.
    norm : float
        M, the bound of |Vd| (`Encoder.norm_bound`); counts for the native parts that need it.

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
    for part in native_parts(routes, capabilities):
        properties[field_name(encoder_id, part)] = native_mapping(part, dims, capabilities, routes, norm)
    return properties


_NONE: Final = NativeFields()


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
    native : NativeFields
        The native parts of these routes in the engine at hand.
    """

    encoder_id: str
    quantisation: Quantisation = "float32"
    routes: tuple[str, ...] = ("fetch",)
    native: NativeFields = _NONE

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
            if has_text[place] and self.native.parts:
                words = slice(rows.indptr[place], rows.indptr[place + 1])
                native = native_values(self.native, vectors[place], rows.indices[words], rows.data[words])
                values |= {names[part]: value for part, value in native.items()}
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


def _check_routes(routes: Collection[str]) -> None:
    for route in routes:
        if route not in ROUTES:
            raise ConfigError(f"route {route!r} is not one of {', '.join(ROUTES)}")
