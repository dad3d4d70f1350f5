"""Fields for the vectors and words of an encoder version in an index, and requests that compute with them. Pure.

The fields of a version are called ``ssi_<first 12 hex digits of the encoder id>_<part>``:

================ ========================================== ===================================== ======================
part             content                                    mapping                               used by
================ ========================================== ===================================== ======================
``src``          hash of the encoded text                   ``keyword``                           every version
``id``           the document's ``_id``                     ``keyword``, doc values only          every version, if the
                                                                                                  engine can use it
``vec``          Vd, packed, base64                         ``binary``, doc values too            *fetch*
``terms``        d's word ids and weights, packed, base64   ``binary``, doc values too            *fetch*
``vec_dense``    Vd                                         ``dense_vector``, ``knn_vector``      scripts
``terms_long``   d, each word id and weight in one integer  ``long``, doc values only             scripts
``vec_unit``     [Vd/M, sqrt(1 - |Vd|²/M²)], a unit vector  ``dense_vector``, ``dot_product``     no scripts
``terms_sparse`` d, words and weights, see `sparse_value`   ``sparse_vector``                     no scripts
``impacts``      words and impacts                          ``sparse_vector``, ``rank_features``  *impacts*
``impacts_hash`` hash of the impacts                        ``keyword``                           *impacts*
================ ========================================== ===================================== ======================

A document without ``src`` has no vector of that version.

Stored fields (``_id``, ``_source``) are compressed, and decompressing them for every hit takes most of the time of a
request for a whole window. Doc values are not. ``_id`` has none itself, so that ``id`` repeats it. Indexes with older
mappings have no ``id``, and no doc values of ``vec`` and ``terms``: their candidates are read from stored fields.

The last four fields, the native parts, are used by the engine itself. Scripts read d from ``terms_long`` because it is
exact: ``sparse_vector`` and ``rank_features`` keep 9 bits of a weight. M is an upper bound of |Vd| for every document
that a model can encode (`Encoder.norm_bound`). It is stored in the mapping of ``vec_unit`` itself, so that it cannot be
separated from the vectors.

On route *inside* the engine computes f(q, d). The fields of the index decide which of two methods is used:

- ``script``: painless, exact to about 1e-6. Scores must not be negative, so a script returns g(x) = 1 + x for x >= 0,
  else 1 / (1 - x). This keeps the order, can be inverted, and is most precise where scores differ least.
- ``unit``: no scripts (Elasticsearch). With the unit vectors a = [Vd/M, sqrt(1 - |Vd|²/M²)] and q' = [Uq/|Uq|, 0],
  a ``knn`` clause with boost 2 M |Uq| scores M |Uq| (1 + q'·a) = M |Uq| + (Uq)·(Vd), linear also below zero; a
  ``sparse_vector`` clause adds q·d, whose weights are rounded (`sparse_value`).

There are two kinds of requests:

- `score_body` returns f for the documents with given ids, on whatever shard they are; the caller blends and orders.
- `rescore_body` makes the engine blend and order (scripts only). Its window applies to every shard, so that with
  several shards more documents than one window would be rescored. ``floor``, the score of the window's last hit
  (`floor_body`), keeps the others behind. Hits that tie with the last one count as inside the window.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyFloat, Bool, Float32, Float64, Int32
from reranker.config import ROUTES
from reranker.engines.bodies import candidate_body, query_of_ids
from reranker.engines.language import property_type
from reranker.engines.protocol import MAX_HITS, Capabilities, version_numbers
from reranker.errors import ConfigError, InputError, ShapeMismatch, Unsupported
from reranker.kernels.packing import Quantisation, pack_rows, pack_vectors, to_text

PARTS = (
    *("src", "id", "vec", "terms", "vec_dense", "terms_long", "vec_unit", "terms_sparse"),
    *("impacts", "impacts_hash"),
)
PACKED_PARTS = ("vec", "terms")
"""Parts that route *fetch* reads of every candidate."""
FIELD_PREFIX = "ssi_"
"""Prefix of the names of all fields that this project adds."""
ID_DIGITS = 12
"""Hex digits of the encoder id in a field name."""
NORM_KEY = "norm"
"""Key of M in the ``meta`` of the ``vec_unit`` mapping."""
_SIGNIFICANT_DIGITS = 7
"""Significant digits of vector components in JSON. float32 has 7.2; every further digit slows down bulk requests."""
_SPARSE_QUERY = (8, 15)
"""First version of Elasticsearch with the ``sparse_vector`` query."""
_LOW_BITS = 0x7FFF
"""Bits of a float32 weight that ``sparse_vector`` drops."""
_LARGEST_LOSS = 5e-4
"""Largest rounding error of a stored weight; a weight that would lose more is stored in two parts."""


def field_prefix(encoder_id: str) -> str:
    """Return the prefix of an encoder's fields, ``ssi_<12 hex>_``. `InputError` unless the id starts with 12 hex."""
    head = encoder_id[:ID_DIGITS]
    if len(head) < ID_DIGITS or any(digit not in "0123456789abcdef" for digit in head):
        raise InputError(
            f"encoder id {encoder_id!r:.80} is invalid: it must begin with {ID_DIGITS} lower-case hex digits"
        )
    return f"{FIELD_PREFIX}{head}_"


@lru_cache(maxsize=256)  # every search requests the same few names
def field_name(encoder_id: str, part: str) -> str:
    """Return the field name for one of `PARTS`. `InputError` for another part, or an invalid encoder id."""
    if part not in PARTS:
        raise InputError(f"field part {part!r} is not one of {', '.join(PARTS)}")
    return field_prefix(encoder_id) + part


def version_fields(
    encoder_id: str, dims: int, capabilities: Capabilities, routes: Collection[str] = ("fetch",), *, norm: float = 1.0
) -> dict[str, Any]:
    """Return the ``properties`` that an encoder version needs for some routes.

    Parameters
    ----------
    encoder_id : str
        Hexadecimal id; its first 12 digits are used.
    dims : int
        N, the number of components of Vd.
    capabilities : Capabilities
        Those of the engine that gets the mapping.
    routes : Collection[str]
        Some of `ROUTES`. ``beside`` needs only the hash and the id; ``inside`` needs native parts.
    norm : float
        M, the upper bound of |Vd| (`Encoder.norm_bound`), for native parts.

    Raises
    ------
    ConfigError
        For an unknown route.
    Unsupported
        If the engine does not have a required field type, or does not allow this many dimensions.
    """
    _check_routes(routes)
    properties: dict[str, Any] = {field_name(encoder_id, "src"): {"type": "keyword"}}
    packed: dict[str, Any] = {"type": "binary"}
    if capabilities.doc_value_hits:
        properties[field_name(encoder_id, "id")] = {"type": "keyword", "index": False}
        packed["doc_values"] = True
    if "impacts" in routes:
        properties[field_name(encoder_id, "impacts")] = impacts_mapping(capabilities)
        properties[field_name(encoder_id, "impacts_hash")] = {"type": "keyword"}
    if "fetch" in routes:
        properties |= {field_name(encoder_id, part): packed for part in PACKED_PARTS}
    for part in native_parts(routes, capabilities):
        properties[field_name(encoder_id, part)] = _native_mapping(part, dims, capabilities, norm)
    return properties


def impacts_mapping(capabilities: Capabilities) -> dict[str, str]:
    """Return the mapping of the field of impacts. `Unsupported` if the engine has no type for weighted words."""
    if not capabilities.sparse_terms:
        kind = f"{capabilities.kind} {capabilities.version}".strip()
        raise Unsupported(
            f"{kind} has no field type for words with weights, which impacts need: use another route",
            engine=capabilities.kind,
        )
    return {"type": capabilities.sparse_terms}


def native_parts(routes: Collection[str], capabilities: Capabilities) -> tuple[str, ...]:
    """Return the native parts that routes need in this engine. `Unsupported`, with the reason, if it has none."""
    if "inside" not in routes:
        return ()
    if not capabilities.dense_vector:
        raise _unsupported(capabilities, "no field type for stored vectors")
    if capabilities.painless:
        return "vec_dense", "terms_long"
    if capabilities.dense_vector != "dense_vector":
        raise _unsupported(capabilities, "no painless scripts")
    numbers = version_numbers(capabilities.version)
    if capabilities.sparse_terms != "sparse_vector" or (numbers and numbers < _SPARSE_QUERY):
        raise _unsupported(capabilities, "neither painless scripts nor the sparse_vector query")
    return "vec_unit", "terms_sparse"


def _unsupported(capabilities: Capabilities, missing: str) -> Unsupported:
    kind = f"{capabilities.kind} {capabilities.version}".strip()
    return Unsupported(
        f"{kind} has {missing}, which the route 'inside' needs: use --routes fetch or beside",
        engine=capabilities.kind,
    )


def _native_mapping(part: str, dims: int, capabilities: Capabilities, norm: float) -> dict[str, Any]:
    if part == "terms_long":
        return {"type": "long", "index": False}
    if part == "terms_sparse":
        return {"type": "sparse_vector"}
    dims = dims + 1 if part == "vec_unit" else dims
    if dims > capabilities.max_dims:
        raise Unsupported(
            f"vectors of {dims} numbers are more than {capabilities.kind} allows ({capabilities.max_dims}): "
            "train with a smaller --dim, or use --routes fetch or beside",
            engine=capabilities.kind,
        )
    if part == "vec_unit":
        # By default the engine quantises to 8 bits, which would affect the last, large component most.
        return {
            "type": "dense_vector",
            "dims": dims,
            "index": True,
            "similarity": "dot_product",
            "index_options": {"type": "flat"},
            "meta": {NORM_KEY: f"{norm:.6g}"},
        }
    if capabilities.dense_vector == "dense_vector":
        return {"type": "dense_vector", "dims": dims, "index": False}
    return {"type": capabilities.dense_vector, "dimension": dims}


class DocValueFields(NamedTuple):
    """The fields of a version from whose doc values a search returns candidates, without reading stored fields."""

    id: str
    """Field with the document's ``_id``."""
    packed: tuple[str, ...]
    """Fields with the packed vector and the packed words; empty if the route needs only ids."""


def doc_value_fields(
    properties: Mapping[str, Any], encoder_id: str, packed_parts: Sequence[str] = ()
) -> DocValueFields | None:
    """Return the fields of an index that candidates can be read from; None if one is missing or has no doc values.

    ``packed_parts`` are the parts needed besides the id, some of `PACKED_PARTS`.
    """
    identifier, packed = field_name(encoder_id, "id"), tuple(field_name(encoder_id, part) for part in packed_parts)
    # By default, keywords have doc values and binary fields have none.
    has_id = property_type(properties.get(identifier, {})) == "keyword"
    complete = all(str(properties.get(name, {}).get("doc_values", "")).lower() == "true" for name in packed)
    return DocValueFields(identifier, packed) if has_id and complete else None


def norm_of(definition: Mapping[str, Any]) -> float:
    """Return M from the mapping of ``vec_unit``. `InputError` if it is missing, so that the field is not ours."""
    try:
        return float((definition.get("meta") or {})[NORM_KEY])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the mapping of the vectors has no bound (meta.{NORM_KEY}): write the version again into a new "
            "index with `ssi index --rebuild --routes inside`"
        ) from None


@dataclass(frozen=True, slots=True)
class FieldWriter:
    """Converts encoded documents to the fields of a version."""

    encoder_id: str
    quantisation: Quantisation = "float32"
    routes: tuple[str, ...] = ("fetch",)
    """Routes, as in `version_fields`."""
    native: tuple[str, ...] = ()
    """The `native_parts` of these routes in the engine."""
    norm: float = 1.0
    """M, the upper bound of |Vd|, for native parts."""
    with_ids: bool = False
    """Whether documents get the part ``id``, which needs its mapping (`Capabilities.doc_value_hits`)."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that a document with text gets."""
        ids = ("id",) if self.with_ids else ()
        return "src", *ids, *(PACKED_PARTS if "fetch" in self.routes else ()), *self.native

    def __post_init__(self) -> None:
        _check_routes(self.routes)

    def fields(
        self, ids: Sequence[str], vectors: Float32, rows: sp.csr_matrix, source_hashes: list[str], has_text: Bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each document; a document without text only gets its hash and its id.

        Parameters
        ----------
        ids : Sequence[str]
            n values of ``_id``.
        vectors : numpy.ndarray
            (n, N) float32: Vd.
        rows : scipy.sparse.csr_matrix
            (n, N_TERM_IDS) float32: lexical rows.
        source_hashes : list[str]
            n values of ``src``.
        has_text : numpy.ndarray
            (n,) bool: whether there was text to encode.

        Raises
        ------
        ShapeMismatch
            If the lengths differ.
        """
        n = len(source_hashes)
        if not n == len(ids) == len(vectors) == rows.shape[0] == len(has_text):
            lengths = f"{len(vectors)} vectors, {rows.shape[0]} rows, {n} hashes, {len(has_text)} flags"
            raise ShapeMismatch(f"{len(ids)} ids, {lengths}")
        fetch = "fetch" in self.routes
        packed_vectors = pack_vectors(vectors, self.quantisation) if fetch else []
        packed_rows = pack_rows(rows, self.quantisation) if fetch else []
        names = {part: field_name(self.encoder_id, part) for part in PARTS}
        for place in range(n):
            values: dict[str, Any] = {names["src"]: source_hashes[place]}
            if self.with_ids:
                values[names["id"]] = ids[place]
            if has_text[place] and fetch:
                values[names["vec"]] = to_text(packed_vectors[place])
                values[names["terms"]] = to_text(packed_rows[place])
            if has_text[place] and self.native:
                words = slice(rows.indptr[place], rows.indptr[place + 1])
                term_ids, weights = rows.indices[words], rows.data[words]
                for part in self.native:
                    values[names[part]] = self._native_value(part, vectors[place], term_ids, weights)
            yield values

    def _native_value(self, part: str, vector: Float32, term_ids: Int32, term_weights: Float32) -> Any:
        if part == "vec_dense":
            return _json_numbers(vector, _SIGNIFICANT_DIGITS)
        if part == "vec_unit":
            return _json_numbers(unit_vector(vector, self.norm), _SIGNIFICANT_DIGITS)
        if part == "terms_long":
            return packed_terms(term_ids, term_weights)
        # A list of one map replaces the words that a document has; a partial update would merge a map into them.
        return [sparse_value(term_ids, term_weights)]


def unit_vector(vector: Float32, norm: float) -> Float32:
    """Return [v/M, sqrt(1 - |v|²/M²)], (N + 1,) float32 of length 1. `InputError` if |v| exceeds M."""
    scaled = vector.astype(np.float64) / norm
    square = float(scaled @ scaled)
    if not square <= 1.0:
        raise InputError(
            f"a vector of length {norm * square**0.5:.6g} exceeds the bound {norm:.6g} of its version: the index "
            "contains fields of another encoder; write them again with `ssi revectorize`"
        )
    return np.append(scaled, np.sqrt(1.0 - square)).astype(np.float32)


def _json_numbers(vector: AnyFloat, digits: int = 9) -> list[float]:
    """Return a vector as JSON numbers; 9 significant digits restore the same float32."""
    return [float(f"{value:.{digits}g}") for value in vector.tolist()]


def sparse_value(term_ids: Int32, weights: Float32) -> dict[str, float]:
    """Return words and weights as JSON; weights of 0 are omitted, since they add nothing and engines refuse them.

    The engine keeps the upper 17 bits of a weight, so each weight is rounded to these (``t<id>``). If that would lose
    more than 5e-4, the remainder is stored under a second word (``r<id>``), which queries include too. The error of q·d
    stays below 5e-4 Σ q_i.
    """
    kept = weights > 0
    ids, wanted = term_ids[kept].tolist(), np.ascontiguousarray(weights[kept], dtype=np.float32)
    bits = wanted.view(np.int32)
    down = (bits & ~_LOW_BITS).view(np.float32)
    nearest = ((bits + (_LOW_BITS + 1) // 2) & ~_LOW_BITS).view(np.float32)
    split = np.abs(wanted - nearest) > _LARGEST_LOSS
    values = {f"t{term}": head for term, head in zip(ids, _json_numbers(np.where(split, down, nearest)), strict=True)}
    rests = _json_numbers(wanted - down)
    return values | {f"r{ids[k]}": rests[k] for k in np.flatnonzero(split).tolist()}


def packed_terms(term_ids: Int32, weights: Float32) -> list[int]:
    """Return words as integers, ascending for binary search: the id in the upper 32 bits, the weight's bits below."""
    kept = weights > 0
    bits = np.ascontiguousarray(weights[kept], dtype=np.float32).view(np.int32).astype(np.int64)
    packed: list[int] = np.sort((term_ids[kept].astype(np.int64) << 32) | bits).tolist()
    return packed


def unpacked_terms(values: object) -> tuple[Int32, Float32]:
    """Return ids (ascending) and weights of a stored ``terms_long`` or ``terms_sparse`` value. Raises `InputError`."""
    try:
        if isinstance(values, list) and len(values) == 1 and isinstance(values[0], Mapping):
            (values,) = values
        if isinstance(values, Mapping):
            sums: dict[int, float] = {}
            for name, weight in values.items():
                sums[int(str(name)[1:])] = sums.get(int(str(name)[1:]), 0.0) + float(weight)
            ids = sorted(sums)
            return np.array(ids, dtype=np.int32), np.array([sums[i] for i in ids], dtype=np.float32)
        listed = values if isinstance(values, list) else [values]
        packed = np.sort(np.array(listed, dtype=np.int64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"stored words {values!r:.60} were not written by this project: run `ssi revectorize`"
        ) from None
    return (packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.uint32).view(np.float32)


def _check_routes(routes: Collection[str]) -> None:
    for route in routes:
        if route not in ROUTES:
            raise ConfigError(f"route {route!r} is not one of {', '.join(ROUTES)}")


# --- route inside

Method = Literal["script", "unit"]
LOST: Final = 1e30
"""Score that `rescore_body` gives to documents without a vector: they come first, so that they are noticed."""
_RESCORABLE = frozenset(
    {
        "query",
        "post_filter",
        "min_score",
        "aggs",
        "aggregations",
        "suggest",
        "track_total_hits",
        "timeout",
        "runtime_mappings",
        "derived",
        "_source",
        "fields",
        "docvalue_fields",
        "stored_fields",
        "highlight",
        "version",
        "seq_no_primary_term",
        "from",
        "size",
        "track_scores",
        "ext",
    }
)
_ROUNDING = 1.0 - 1e-6
"""A score computed twice may differ in its last digit, so the floor is lowered by this factor."""


@dataclass(frozen=True, slots=True)
class InsideFields:
    """The fields of a version with which the engine computes f."""

    method: Method
    """See the module's docstring."""
    vector: str
    """Field of Vd."""
    terms: str
    """Field of d."""
    product: str = ""
    """`Capabilities.vector_product` of the engine, for method ``script``."""
    norm: float = 1.0
    """M, the upper bound of |Vd|, for method ``unit``."""
    rescore_script: bool = False
    """Whether a ``rescore`` accepts a script."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryVectors:
    """An encoded query: the query's part of f, as kernels and request bodies use it."""

    vector: Float32
    """Uq, (N,) float32."""
    ids: Int32
    """Word ids of q, (n_terms,) int32, strictly increasing."""
    weights: Float32
    """Weights of q, (n_terms,) float32."""
    identity: float
    """a in f = (Uq).(Vd) + a q.d."""

    @property
    def length(self) -> float:
        """|Uq|, the length of the vector."""
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @property
    def word_weights(self) -> Float64:
        """Weights of the words of q multiplied by a, (n_terms,) float64."""
        return self.identity * self.weights.astype(np.float64)


def inside_fields(properties: Mapping[str, Any], encoder_id: str, capabilities: Capabilities) -> InsideFields | None:
    """Return the fields of an index for route *inside*, None if some are missing. `InputError` if M is missing."""
    scripted = script_fields(encoder_id, capabilities)
    # Without the right to query capabilities, nothing is known of them. The fields then show what the engine can do.
    if (capabilities.painless or not capabilities.version) and {scripted.vector, scripted.terms} <= set(properties):
        return scripted
    vector, terms = field_name(encoder_id, "vec_unit"), field_name(encoder_id, "terms_sparse")
    if {vector, terms} <= set(properties):
        return InsideFields("unit", vector, terms, norm=norm_of(properties[vector]))
    return None


def script_fields(encoder_id: str, capabilities: Capabilities) -> InsideFields:
    """Return the fields that an encoder's scripts read, whether or not an index has them."""
    vector, terms = field_name(encoder_id, "vec_dense"), field_name(encoder_id, "terms_long")
    product, rescore = capabilities.vector_product, capabilities.rescore_script
    return InsideFields("script", vector, terms, product, rescore_script=rescore)


@lru_cache
def _file(name: str) -> str:
    lines = resources.files("plugin_scripts").joinpath(f"painless/{name}.painless").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))


@lru_cache
def script_source(name: Literal["model", "blend"], fields: InsideFields) -> str:
    """Return the painless source of f only (``model``) or of the blend with ``_score``, with the fields' names."""
    source = _file(name).replace("@PRODUCT@", fields.product).replace("@WORDS@", _file("words"))
    return source.replace("@VECTOR@", fields.vector).replace("@TERMS@", fields.terms)


def _script(name: Literal["model", "blend"], fields: InsideFields, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"lang": "painless", "source": script_source(name, fields), "params": dict(params)}


def _query_params(query: QueryVectors) -> dict[str, Any]:
    weights = query.word_weights
    kept = np.flatnonzero(weights)
    return {"u": _json_numbers(query.vector), "ids": query.ids[kept].tolist(), "weights": _json_numbers(weights[kept])}


def score_body(fields: InsideFields, query: QueryVectors, ids: Sequence[str], size: int) -> dict[str, Any]:
    """Return the body that scores the documents with these ids by f; documents without a vector are not returned.

    ``size`` is the largest number of hits, at most 10,000. It exceeds the number of ids if an alias has several
    documents with the same id.
    """
    conditions: dict[str, Any] = {"filter": [{"ids": {"values": list(ids)}}, {"exists": {"field": fields.vector}}]}
    scored: dict[str, Any] = {"bool": conditions}
    if fields.method == "script":
        scored = {"script_score": {"query": scored, "script": _script("model", fields, _query_params(query))}}
    else:
        conditions["should"] = _unit_clauses(fields, query, ids, size)
    return {"query": scored, "size": size, "_source": False, "track_total_hits": False}


def _unit_clauses(fields: InsideFields, query: QueryVectors, ids: Sequence[str], size: int) -> list[dict[str, Any]]:
    clauses: list[dict[str, Any]] = []
    if query.length > 0:
        # As many candidates as ids, so that the engine examines each of them and the result is exact.
        knn = {
            "field": fields.vector,
            "query_vector": _unit_query(query.vector),
            "num_candidates": min(max(size, len(ids)), MAX_HITS),
            "filter": {"ids": {"values": list(ids)}},
            "boost": 2.0 * fields.norm * query.length,
        }
        clauses.append({"knn": knn})
    words = _sparse_query(query)
    if words:
        # Pruning, the default since 8.19, would skip frequent words: fine for a search, wrong for a score.
        clauses.append({"sparse_vector": {"field": fields.terms, "query_vector": words, "prune": False}})
    return clauses


def _unit_query(vector: Float32) -> list[float]:
    """Return the query vector [v / |v|, 0] as JSON numbers."""
    wide = vector.astype(np.float64)
    return _json_numbers(np.append(wide / np.linalg.norm(wide), 0.0))


def _sparse_query(query: QueryVectors) -> dict[str, float]:
    """Return the words of q, weighted by a, under their names in the index."""
    pairs = zip(query.ids.tolist(), _json_numbers(query.word_weights), strict=True)
    return {f"{part}{term}": weight for term, weight in pairs if weight for part in "tr"}


def model_scores(fields: InsideFields, query: QueryVectors, scores: Sequence[float]) -> Float64:
    """Return f, (n,) float64, from the scores of the hits of `score_body`."""
    values = np.asarray(scores, dtype=np.float64)
    return unmapped(values) if fields.method == "script" else values - fields.norm * query.length


def unmapped(scores: Float64) -> Float64:
    """Return x from g(x) (see the module's docstring); -inf for 0, and NaN for values that g never takes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scores >= 1.0, scores - 1.0, np.where(scores >= 0, 1.0 - 1.0 / scores, np.nan))


def why_not_rescored(body: Mapping[str, Any], fields: InsideFields) -> str:
    """Return why the engine cannot order the hits of a body itself, or an empty string.

    A script only sees the score of ``query``. Bodies that score by other parts as well (``knn``, ...), or that sort,
    are scored by ids instead.
    """
    if fields.method != "script":
        return "rescoring needs painless scripts"
    if "query" not in body:
        return "the body has no query"
    other = sorted(set(body) - _RESCORABLE)
    return f"the body has {other[0]!r}" if other else ""


def rescore_body(
    body: Mapping[str, Any],
    fields: InsideFields,
    query: QueryVectors,
    floor: float | None = None,
    *,
    blend: Mapping[str, Any],
    window: int,
    stored: str | None = None,
) -> dict[str, Any]:
    """Return the original body with a ``rescore`` that orders its window by the blend; read scores with `unmapped`.

    The blend of the first ``window`` hits is alpha f + lexical BM25, lexical = (1 - alpha) / c(q), plus the sum of
    weight s(x) over the signals, if there are any.

    Parameters
    ----------
    body : Mapping
        A body that `why_not_rescored` accepts, with the query text filled in.
    fields : InsideFields
        Fields of the version.
    query : QueryVectors
        The encoded query.
    floor : float, optional
        Score of the window's last hit. None if the index has a single shard, or the window contains all hits.
    blend : Mapping
        ``alpha``, ``lexical`` and ``signals``, a list of field, kind, weight, the table of x and s, and ``neutral``,
        the value of s for a missing number.
    window : int
        Number of hits that are reranked.
    stored : str, optional
        Id of the stored script; None sends the script with the request.
    """
    params = _query_params(query) | {
        **blend,
        "lost": LOST,
        "floor": 0.0 if floor is None else floor * _ROUNDING,
    }
    script = {"id": stored, "params": params} if stored else _script("blend", fields, params)
    if fields.rescore_script:
        rescorer: dict[str, Any] = {"script": {"script": script}}
    else:
        again = {"script_score": {"query": copy.deepcopy(body["query"]), "script": script}}
        rescorer = {"query": {"rescore_query": again, "query_weight": 0.0, "rescore_query_weight": 1.0}}
    return {**copy.deepcopy(dict(body)), "rescore": {"window_size": window, **rescorer}}


def floor_body(body: Mapping[str, Any], window: int) -> dict[str, Any]:
    """Return the body whose only hit is the last one of the window; it has no hit if fewer documents match."""
    last = candidate_body(body, 1, answers=False)
    return {**last, "from": window - 1, "track_total_hits": False}


# --- conditions of a body, which another first stage applies too

_CONDITIONS = frozenset(
    {
        "term",
        "terms",
        "terms_set",
        "range",
        "exists",
        "ids",
        "prefix",
        "wildcard",
        "regexp",
        "geo_distance",
        "geo_bounding_box",
        "geo_shape",
    }
)
"""Clauses that are conditions in any position: a document that does not meet them is not a hit."""
_INNER = {
    "function_score": "query",
    "script_score": "query",
    "constant_score": "filter",
    "boosting": "positive",
    "pinned": "organic",
    "rule": "organic",
}
"""Clauses that only change the scores of one inner clause, or put documents on top of it → part with that clause."""
_OTHER_SEARCHES = ("knn", "rank", "retriever", "sub_searches")
"""Parts of a body that find documents independently of its ``query``, under their own conditions."""
_ONLY_SCORES = frozenset({"functions", "negative"})
"""Parts of a clause whose conditions affect scores, not hits."""


class _Conditions(NamedTuple):
    """Conditions read from a clause."""

    always: list[Any]
    """Queries that every hit must match."""
    never: list[Any]
    """Queries that no hit may match."""
    unread: set[str]
    """Names of clauses with other conditions, which are not read."""


def conditions_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the conditions of a body that every hit must meet, as one query; None if there are none.

    Included are ``filter`` and ``must_not`` of the outermost ``bool`` and of each ``bool`` within a ``must``, exact
    clauses in ``must`` (``term``, ``range``, ``exists``, ..., and a ``bool`` of nothing else), and ``post_filter``.
    Clauses that only change scores or put documents on top (``function_score``, ``pinned``, ...) are searched for
    conditions. The words of the query are not conditions: this first stage is meant to find documents without them. See
    `unread_conditions`.
    """
    read = _read(body.get("query"))
    clauses = {"filter": [*read.always, *_listed(body.get("post_filter"))], "must_not": read.never}
    kept = {name: copy.deepcopy(value) for name, value in clauses.items() if value}
    return {"bool": kept} if kept else None


def unread_conditions(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a body that may exclude documents in ways that `conditions_of` does not include.

    These are searches in addition to the query (``knn``, ``retriever``, ...), and clauses with a ``filter`` or
    ``must_not`` that is only one of several alternatives (in a required ``should``) or applies to a part of a document
    (``nested``).
    """
    return tuple(sorted({name for name in _OTHER_SEARCHES if name in body} | _read(body.get("query")).unread))


def _holds_condition(value: Any) -> bool:
    """Return whether a clause contains a ``filter`` or ``must_not`` that affects hits, not only scores."""
    if isinstance(value, Mapping):
        if isinstance(inner := value.get("constant_score"), Mapping):
            return _holds_condition(inner.get("filter"))  # an ordinary query, despite the name ``filter``
        return any(
            name in ("filter", "must_not") or (name not in _ONLY_SCORES and _holds_condition(part))
            for name, part in value.items()
        )
    return isinstance(value, list | tuple) and any(map(_holds_condition, value))


def _is_exact(query: Any) -> bool:
    """Return whether a clause is a condition: an exact clause, or a ``bool`` of nothing else."""
    if not isinstance(query, Mapping) or len(query) != 1:
        return False
    name, inner = next(iter(query.items()))
    if name != "bool" or not isinstance(inner, Mapping):
        return name in _CONDITIONS
    return all(_is_exact(clause) for part in ("must", "should") for clause in _listed(inner.get(part)))


def _read(query: Any) -> _Conditions:
    read = _Conditions([], [], set())
    if not isinstance(query, Mapping) or len(query) != 1:
        return read
    name, inner = next(iter(query.items()))
    if name in _CONDITIONS:
        read.always.append(query)
        return read
    if name in _INNER and isinstance(inner, Mapping):
        return _read(inner.get(_INNER[name]))
    if name != "bool" or not isinstance(inner, Mapping):
        read.unread.update({str(name)} if _holds_condition(inner) else ())
        return read
    read.always.extend(_listed(inner.get("filter")))
    read.never.extend(_listed(inner.get("must_not")))
    if "minimum_should_match" in inner or not ("must" in inner or "filter" in inner):
        alternatives = [clause for clause in _listed(inner.get("should")) if clause]
        read.unread.update(str(next(iter(clause))) for clause in alternatives if _holds_condition(clause))
    for clause in _listed(inner.get("must")):
        more = _Conditions([clause], [], set()) if _is_exact(clause) else _read(clause)
        read.always.extend(more.always)
        read.never.extend(more.never)
        read.unread.update(more.unread)
    return read


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def lexical_body(
    body: Mapping[str, Any],
    ids: list[str],
    size: int,
    source: bool | list[str],
    doc_values: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the body that scores documents with these ids by the original query; 0 if a document does not match.

    ``source`` and ``doc_values`` (``docvalue_fields``) are returned with each hit.
    """
    kept = {name: copy.deepcopy(body[name]) for name in ("runtime_mappings", "derived") if name in body}
    wanted = query_of_ids(body, ids)
    shown = {"_source": source, **({"docvalue_fields": list(doc_values)} if doc_values else {})}
    return {**kept, "query": wanted, "size": size, **shown, "track_total_hits": False}
