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
``impacts``      words and impacts                          ``sparse_vector``, ``rank_features``  *impacts*
``impacts_hash`` hash of the impacts                        ``keyword``                           *impacts*
================ ========================================== ===================================== ======================

A document without ``src`` has no vector of that version.

Stored fields (``_id``, ``_source``) are compressed, and decompressing them for every hit takes most of the time of a
request for a whole window. Doc values are not. ``_id`` has none itself, so that ``id`` repeats it. Indexes with older
mappings have no ``id``, and no doc values of ``vec`` and ``terms``: their candidates are read from stored fields.

Earlier releases wrote the parts ``vec_dense``, ``terms_long``, ``vec_unit`` and ``terms_sparse`` for a route *inside*.
Nothing reads them; they are removed with their version.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Int32
from reranker.config import ROUTES
from reranker.engines.bodies import query_of_ids
from reranker.engines.language import property_type
from reranker.engines.protocol import Capabilities
from reranker.errors import ConfigError, InputError, ShapeMismatch, Unsupported
from reranker.kernels.packing import Quantisation, pack_rows, pack_vectors, to_text

PARTS = ("src", "id", "vec", "terms", "impacts", "impacts_hash")
PACKED_PARTS = ("vec", "terms")
"""Parts that route *fetch* reads of every candidate."""
FIELD_PREFIX = "ssi_"
"""Prefix of the names of all fields that this project adds."""
ID_DIGITS = 12
"""Hex digits of the encoder id in a field name."""


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


def version_fields(encoder_id: str, capabilities: Capabilities, routes: Collection[str] = ("fetch",)) -> dict[str, Any]:
    """Return the ``properties`` that an encoder version needs for some routes.

    Parameters
    ----------
    encoder_id : str
        Hexadecimal id; its first 12 digits are used.
    capabilities : Capabilities
        Those of the engine that gets the mapping.
    routes : Collection[str]
        Some of `ROUTES`. ``beside`` needs only the hash and the id.

    Raises
    ------
    ConfigError
        For an unknown route.
    Unsupported
        If the engine does not have a required field type.
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


@dataclass(frozen=True, slots=True)
class FieldWriter:
    """Converts encoded documents to the fields of a version."""

    encoder_id: str
    quantisation: Quantisation = "float32"
    routes: tuple[str, ...] = ("fetch",)
    """Routes, as in `version_fields`."""
    with_ids: bool = False
    """Whether documents get the part ``id``, which needs its mapping (`Capabilities.doc_value_hits`)."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that a document with text gets."""
        ids = ("id",) if self.with_ids else ()
        return "src", *ids, *(PACKED_PARTS if "fetch" in self.routes else ())

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
            yield values


def _check_routes(routes: Collection[str]) -> None:
    for route in routes:
        if route not in ROUTES:
            raise ConfigError(f"route {route!r} is not one of {', '.join(ROUTES)}")


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
