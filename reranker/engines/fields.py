"""The fields of one encoder version in an index: names, mapping and values. Pure.

A version's fields are called ``ssi_<first 12 hex digits of the encoder id>_<part>``:

================ ========================================== ===================================== ======================
part             holds                                      mapping                               for
================ ========================================== ===================================== ======================
``src``          hash of the text the rest was made from    ``keyword``                           every version
``vec``          Vd, packed, base64                         ``binary`` (kept in _source only)     *fetch*
``terms``        d's word ids and weights, packed, base64   ``binary``                            *fetch*
``vec_dense``    Vd                                         ``dense_vector``, ``knn_vector``      scripts; OpenSearch's
                                                                                                  first stage
``terms_long``   d, each word id and weight in one integer  ``long``, doc values alone            scripts
``vec_unit``     [Vd/M, sqrt(1 - |Vd|²/M²)], a unit vector  ``dense_vector``, ``dot_product``     no scripts; first
                                                                                                  stage (Elasticsearch)
``terms_sparse`` d, words and weights, see `sparse_value`   ``sparse_vector``                     no scripts
================ ========================================== ===================================== ======================

A document without ``src`` has no vector of that version. The last four, the native parts, are what an engine itself
computes with. Scripts read d from ``terms_long`` because it is exact: ``sparse_vector`` and ``rank_features`` keep 9
bits of a weight. M bounds |Vd| of every document a model can see (`Encoder.norm_bound`); it is kept in the mapping of
``vec_unit`` itself, so it cannot be parted from the vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Int32
from reranker.engines.base import Capabilities, version_numbers
from reranker.errors import ConfigError, InputError, ShapeMismatch, Unsupported
from reranker.kernels.packing import Quantisation, pack_rows, pack_vectors, to_text

ROUTES = ("beside", "fetch", "inside", "first-stage")
"""Ways to serve a version: vectors beside the reranker, fetched with the hits, or computed with in the engine; and
``first-stage``, by which documents are found that share no word with the query."""
NATIVE_ROUTES = ("inside", "first-stage")
PARTS = ("src", "vec", "terms", "vec_dense", "terms_long", "vec_unit", "terms_sparse")
ID_DIGITS = 12
"""Hex digits of the encoder id in a field name."""
NORM_KEY = "norm"
"""Key of M in the ``meta`` of the ``vec_unit`` field."""
_SIGNIFICANT_DIGITS = 7
"""Digits of a vector's number in JSON: float32 has 7.2; every digit costs bulk time."""
_KNN_SEARCH, _SPARSE_QUERY = (8, 4), (8, 15)
"""Elasticsearch has ``knn`` with filters in a search, and the ``sparse_vector`` query, since these versions."""
_LOW_BITS = 0x7FFF
"""Bits of a float32 that ``sparse_vector`` drops from a weight."""
_LARGEST_LOSS = 5e-4
"""A weight that loses more than this is stored in two parts."""


def field_prefix(encoder_id: str) -> str:
    """Return what all field names of an encoder version begin with: ``ssi_<12 hex>_``.

    `InputError` if ``encoder_id`` does not begin with 12 hex digits.
    """
    head = encoder_id[:ID_DIGITS]
    if len(head) < ID_DIGITS or any(digit not in "0123456789abcdef" for digit in head):
        raise InputError(
            f"encoder id {encoder_id!r:.80} is not legal: it begins with {ID_DIGITS} lower-case hex digits"
        )
    return f"ssi_{head}_"


def field_name(encoder_id: str, part: str) -> str:
    """Return the name of the field for one of `PARTS`; `InputError` for another part, or an id that is not hex."""
    if part not in PARTS:
        raise InputError(f"field part {part!r} is not one of {', '.join(PARTS)}")
    return field_prefix(encoder_id) + part


def version_fields(
    encoder_id: str, dims: int, capabilities: Capabilities, routes: Collection[str] = ("fetch",), *, norm: float = 1.0
) -> dict[str, Any]:
    """Return the ``properties`` that an encoder version needs for the routes wanted.

    Of the hex ``encoder_id`` the first 12 digits count; ``dims`` is N, numbers of Vd; ``capabilities`` are those of the
    engine that gets the mapping. Of ``routes``, ``beside`` needs no field but the hash, the last two of `ROUTES` need
    native parts, for which ``norm`` is M, the bound of |Vd| (`Encoder.norm_bound`).

    `ConfigError` for an unknown route; `Unsupported` for a route whose field types this engine lacks, or for more
    dimensions than it takes.
    """
    _check_routes(routes)
    properties: dict[str, Any] = {field_name(encoder_id, "src"): {"type": "keyword"}}
    if "fetch" in routes:
        properties |= {field_name(encoder_id, part): {"type": "binary"} for part in ("vec", "terms")}
    for part in native_parts(routes, capabilities):
        properties[field_name(encoder_id, part)] = _native_mapping(part, dims, capabilities, routes, norm)
    return properties


def native_parts(routes: Collection[str], capabilities: Capabilities) -> tuple[str, ...]:
    """Return the native parts that these routes need in this engine.

    `Unsupported` if the engine cannot carry a route; the message names what can.
    """
    parts: list[str] = []
    if "inside" in routes:
        parts += _inside_parts(capabilities)
    if "first-stage" in routes:
        parts.append(_first_stage_part(capabilities))
    return tuple(dict.fromkeys(parts))


def _inside_parts(capabilities: Capabilities) -> tuple[str, str]:
    if capabilities.dense_vector and capabilities.painless:
        return "vec_dense", "terms_long"
    if not capabilities.dense_vector:
        raise _unsupported(capabilities, "inside", "no field type for stored vectors")
    if capabilities.dense_vector != "dense_vector":
        raise _unsupported(capabilities, "inside", "no painless scripts")
    if capabilities.sparse_terms != "sparse_vector" or _older(capabilities, _SPARSE_QUERY):
        raise _unsupported(capabilities, "inside", "neither painless scripts nor the sparse_vector query")
    return "vec_unit", "terms_sparse"


def _first_stage_part(capabilities: Capabilities) -> str:
    if not capabilities.dense_vector:
        raise _unsupported(capabilities, "first-stage", "no field type for stored vectors")
    if capabilities.dense_vector != "dense_vector":
        return "vec_dense"
    if _older(capabilities, _KNN_SEARCH):
        raise _unsupported(capabilities, "first-stage", "no knn query")
    return "vec_unit"


def _older(capabilities: Capabilities, than: tuple[int, int]) -> bool:
    numbers = version_numbers(capabilities.version)
    return bool(numbers) and numbers < than


def _unsupported(capabilities: Capabilities, route: str, lack: str) -> Unsupported:
    kind = f"{capabilities.kind} {capabilities.version}".strip()
    return Unsupported(
        f"{kind} has {lack}, which the route {route!r} needs: use --routes fetch or beside", engine=capabilities.kind
    )


def _native_mapping(
    part: str, dims: int, capabilities: Capabilities, routes: Collection[str], norm: float
) -> dict[str, Any]:
    first_stage = "first-stage" in routes
    if part == "terms_long":
        return {"type": "long", "index": False}
    if part == "terms_sparse":
        return {"type": "sparse_vector"}
    dims = dims + 1 if part == "vec_unit" else dims
    if dims > capabilities.max_dims:
        raise Unsupported(
            f"vectors of {dims} numbers are more than {capabilities.kind} takes ({capabilities.max_dims}): "
            "train with a smaller --dim, or use --routes fetch or beside",
            engine=capabilities.kind,
        )
    if part == "vec_unit":
        # The engine's default quantises to 8 bits, which the last, large component would coarsen most.
        options = {"type": "hnsw", "m": 16, "ef_construction": 100} if first_stage else {"type": "flat"}
        return {
            "type": "dense_vector", "dims": dims, "index": True, "similarity": "dot_product",
            "index_options": options, "meta": {NORM_KEY: f"{norm:.6g}"},
        }  # fmt: skip
    if capabilities.dense_vector == "dense_vector":
        return {"type": "dense_vector", "dims": dims, "index": False}
    # Lucene's own index: faiss needs a native library, and its builds without it take the whole node down.
    method = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct"}
    return {"type": capabilities.dense_vector, "dimension": dims, **({"method": method} if first_stage else {})}


def native_settings(routes: Collection[str], capabilities: Capabilities) -> dict[str, str]:
    """Return the index settings that the routes need from the start: OpenSearch never switches ``index.knn`` later."""
    knn = "first-stage" in routes and capabilities.dense_vector == "knn_vector"
    return {"index.knn": "true"} if knn else {}


def norm_of(definition: Mapping[str, Any]) -> float:
    """Return M from the mapping of ``vec_unit``; `InputError` if it is not there: another program made the field."""
    try:
        norm = float((definition.get("meta") or {})[NORM_KEY])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the mapping of the vectors lacks their bound (meta.{NORM_KEY}): write the version again into a new "
            "index with `ssi index --rebuild --routes inside`"
        ) from None
    return norm


@dataclass(frozen=True, slots=True)
class FieldWriter:
    """Turns encoded documents into the fields of a version."""

    encoder_id: str
    quantisation: Quantisation = "float32"
    routes: tuple[str, ...] = ("fetch",)
    """As in `version_fields`."""
    native: tuple[str, ...] = ()
    """The `native_parts` of these routes in the engine at hand."""
    norm: float = 1.0
    """M, for native parts."""

    def __post_init__(self) -> None:
        _check_routes(self.routes)

    def fields(
        self, vectors: Float32, rows: sp.csr_matrix, source_hashes: list[str], has_text: Bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each document; one without text gets its hash alone.

        ``vectors``, (n, N) float32, are Vd of each document, ``rows``, (n, N_TERM_IDS) csr float32, its lexical row,
        ``source_hashes`` its ``_src``; ``has_text``, (n,) bool, is False where there was no text to encode.
        `ShapeMismatch` unless there are n of each.
        """
        n = len(source_hashes)
        if not n == len(vectors) == rows.shape[0] == len(has_text):
            raise ShapeMismatch(f"{len(vectors)} vectors, {rows.shape[0]} rows, {n} hashes, {len(has_text)} flags")
        fetch = "fetch" in self.routes
        packed_vectors = pack_vectors(vectors, self.quantisation) if fetch else []
        packed_rows = pack_rows(rows, self.quantisation) if fetch else []
        names = {part: field_name(self.encoder_id, part) for part in PARTS}
        for place in range(n):
            values: dict[str, Any] = {names["src"]: source_hashes[place]}
            if has_text[place] and fetch:
                values[names["vec"]] = to_text(packed_vectors[place])
                values[names["terms"]] = to_text(packed_rows[place])
            if has_text[place] and self.native:
                words = slice(rows.indptr[place], rows.indptr[place + 1])
                ids, weights = rows.indices[words], rows.data[words]
                for part in self.native:
                    values[names[part]] = self._native_value(part, vectors[place], ids, weights)
            yield values

    def _native_value(self, part: str, vector: Float32, term_ids: Int32, term_weights: Float32) -> Any:
        if part == "vec_dense":
            return dense_value(vector)
        if part == "vec_unit":
            return dense_value(unit_vector(vector, self.norm))
        return (packed_terms if part == "terms_long" else sparse_value)(term_ids, term_weights)


def unit_vector(vector: Float32, norm: float) -> Float32:
    """Return [v/M, sqrt(1 - |v|²/M²)], (N + 1,) float32 of length 1.

    `InputError` if |v| is above M: the vectors are not of the encoder that M was made for.
    """
    scaled = vector.astype(np.float64) / norm
    square = float(scaled @ scaled)
    if not square <= 1.0:
        raise InputError(
            f"a vector of length {norm * square**0.5:.6g} is above the bound {norm:.6g} of its version: the index "
            "holds another encoder's fields; write them again with `ssi revectorize`"
        )
    return np.append(scaled, np.sqrt(1.0 - square)).astype(np.float32)


def dense_value(vector: Float32) -> list[float]:
    """Return a vector as JSON numbers of at most 7 significant digits, which is all a float32 has."""
    return [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in vector.tolist()]


def sparse_value(term_ids: Int32, weights: Float32) -> dict[str, float]:
    """Return words and weights as JSON; a weight of 0 adds nothing to q·d, and engines refuse it.

    The engine keeps the upper 17 bits of a weight. So each is rounded to what they can hold (``t<id>``), and where
    that loses more than 5e-4, what is left goes into a word of its own (``r<id>``), which queries ask for too: the
    error of q·d stays below 5e-4 Σ q_i.
    """
    kept = weights > 0
    ids, wanted = term_ids[kept].tolist(), np.ascontiguousarray(weights[kept], dtype=np.float32)
    bits = wanted.view(np.int32)
    down = (bits & ~_LOW_BITS).view(np.float32)
    nearest = ((bits + (_LOW_BITS + 1) // 2) & ~_LOW_BITS).view(np.float32)
    split = np.abs(wanted - nearest) > _LARGEST_LOSS
    heads = np.where(split, down, nearest).tolist()
    values = {f"t{term}": float(f"{head:.9g}") for term, head in zip(ids, heads, strict=True)}
    rests = (wanted - down).tolist()
    return values | {f"r{ids[k]}": float(f"{rests[k]:.9g}") for k in np.flatnonzero(split).tolist()}


def packed_terms(term_ids: Int32, weights: Float32) -> list[int]:
    """Return words and weights as integers: the id in the upper 32 bits, the bits of the float32 weight below.

    Sorted by id, as doc values are, so that a script finds a word by halving.
    """
    kept = weights > 0
    bits = np.ascontiguousarray(weights[kept], dtype=np.float32).view(np.int32).astype(np.int64)
    packed: list[int] = np.sort((term_ids[kept].astype(np.int64) << 32) | bits).tolist()
    return packed


def unpacked_terms(values: object) -> tuple[Int32, Float32]:
    """Return ids and weights from a stored ``terms_long`` or ``terms_sparse`` value, ids ascending.

    `InputError` if it is neither.
    """
    try:
        if isinstance(values, Mapping):
            sums: dict[int, float] = {}
            for name, weight in values.items():
                sums[int(str(name)[1:])] = sums.get(int(str(name)[1:]), 0.0) + float(weight)
            ids = sorted(sums)
            return np.array(ids, dtype=np.int32), np.array([sums[i] for i in ids], dtype=np.float32)
        listed = values if isinstance(values, list) else [values]
        packed = np.sort(np.array(listed, dtype=np.int64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"stored words {values!r:.60} are not of this project: run `ssi revectorize`") from None
    return (packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.uint32).view(np.float32)


def _check_routes(routes: Collection[str]) -> None:
    for route in routes:
        if route not in ROUTES:
            raise ConfigError(f"route {route!r} is not one of {', '.join(ROUTES)}")
