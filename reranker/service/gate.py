"""Allow list for search bodies from clients: everything that may reach the engine.

A search body can do far more than search: run scripts, read documents of other indexes (lookups, percolators, shapes),
keep contexts open, start pipelines, or exhaust the engine's memory. `check_body` therefore knows the parts of a body
that only search one index, and refuses everything else, including parts that a later version of an engine introduces.
The lists below are the complete rule: a name that is in none of them is refused.

The allow list also bounds the cost of one body (`MAX_CLAUSES`, `MAX_BUCKETS` and the ranges of sizes). Whether options
are valid together is left to the engine, which answers with its own error.

The operator's own body (`ssi serve --body`) is not checked: `trusted_body` marks it as trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NewType

from reranker.engines.protocol import MAX_HITS
from reranker.service.http import ServiceError

CheckedBody = NewType("CheckedBody", Mapping[str, Any])
"""A search body that may be sent to the engine: it passed `check_body`, or it is the operator's own."""

MAX_CLAUSES: Final = 1024
"""Query clauses in all parts of one body together; the engines' default limit for one query."""
MAX_BUCKETS: Final = 50_000
"""Buckets that the aggregations of one body may request: sizes of nested aggregations multiply, siblings add up."""
HISTOGRAM_BUCKETS: Final = 100
"""Buckets assumed for an aggregation whose request does not state their number, such as a histogram."""
MAX_AGGREGATIONS: Final = 200
"""Aggregations in one body, including nested ones."""
MAX_INNER_HITS: Final = 100
"""Hits per group of ``inner_hits`` or ``top_hits``."""
MAX_BOOST: Final = 1e9
"""Largest ``boost`` or ``weight``: products of larger ones overflow the engine's scores."""

_TIMEOUT = re.compile(r"\d{1,5}(ms|s)|\d{1,2}m")
_SHOWN_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,40}")
_REMEDY = "docs/reference.md lists what is allowed; put other parts into the service's own body (ssi serve --body)"


def trusted_body(body: Mapping[str, Any]) -> CheckedBody:
    """Mark a search body of the operator as trusted: the operator may use every feature of the engine."""
    return CheckedBody(body)


def check_body(body: Any, index: str) -> CheckedBody:
    """Return a search body from a client after checking every part of it against the allow list.

    Parameters
    ----------
    body : Any
        The decoded JSON of the body.
    index : str
        The only index (or alias) whose documents the body may name.

    Raises
    ------
    ServiceError
        403 with kind ``not_allowed`` for a part that is not on the list; 422 with kind ``invalid`` for a value of the
        wrong JSON type or out of range. The message names the position and the part, but never quotes query text.
    """
    reader = _Reader(index)
    reader.fields_of(body, "the body", BODY_OPTIONS)
    first, size = body.get("from") or 0, body.get("size", 10)
    if first + size > MAX_HITS:
        raise _invalid("from + size", f"is {first + size}, more than the {MAX_HITS} hits that an engine returns")
    return CheckedBody(body)


def _not_allowed(what: str, name: str, place: str) -> ServiceError:
    shown = f" {name!r}" if _SHOWN_NAME.fullmatch(name) else ""
    return ServiceError(403, f"{what}{shown} in {place} is not allowed from clients: {_REMEDY}", kind="not_allowed")


def _invalid(place: str, fault: str) -> ServiceError:
    return ServiceError(422, f"{place} {fault}", kind="invalid")


class _Reader:
    """State of one walk through a body: the index that it may name, and the clauses and aggregations counted so far."""

    def __init__(self, index: str) -> None:
        self.index = index
        self.clauses = 0
        self.aggregations = 0

    def fields_of(self, value: Any, place: str, options: Mapping[str, Checker], what: str = "the option") -> None:
        """Check a JSON object whose keys must all be in ``options``."""
        if not isinstance(value, dict):
            raise _invalid(place, "must be a JSON object")
        for name, part in value.items():
            check = options.get(name)
            if check is None:
                raise _not_allowed(what, name, place)
            check(self, part, name)

    def query(self, value: Any, place: str) -> None:
        """Check a query: a JSON object of clauses."""
        if not isinstance(value, dict):
            raise _invalid(place, "must be a JSON object of query clauses")
        for name, part in value.items():
            self.clauses += 1
            if self.clauses > MAX_CLAUSES:
                raise _invalid(place, f"has more than {MAX_CLAUSES} query clauses in one body: send fewer")
            check = QUERIES.get(name)
            if check is None:
                raise _not_allowed("the query clause", name, place)
            check(self, part, name)


Checker = Callable[[_Reader, Any, str], None]
"""``check(reader, value, place)`` raises `ServiceError` unless the value is allowed at this position."""


# --- values


_SCALARS = (str, int, float, type(None))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _SCALARS)


def scalar(_: _Reader, value: Any, place: str) -> None:
    """Check a string, number, boolean or null."""
    if not _is_scalar(value):
        raise _invalid(place, "must be a text, a number, true or false")


def scalars(_: _Reader, value: Any, place: str) -> None:
    """Check a scalar or a list of scalars."""
    if not (_is_scalar(value) or (isinstance(value, list) and all(map(_is_scalar, value)))):
        raise _invalid(place, "must be a text, a number, true, false or a list of these")


def number(least: float, most: float) -> Checker:
    """Return a checker for a number in a closed range. Null means the engine's default."""

    def check(_: _Reader, value: Any, place: str) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise _invalid(place, f"must be a number from {least:g} to {most:g}")

    return check


def whole(least: int, most: int) -> Checker:
    """Return a checker for an integer in a closed range."""

    def check(_: _Reader, value: Any, place: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _invalid(place, f"must be a whole number from {least} to {most}")

    return check


def timeout(_: _Reader, value: Any, place: str) -> None:
    """Check a duration such as ``500ms``, ``2s`` or ``1m``."""
    if not isinstance(value, str) or not _TIMEOUT.fullmatch(value):
        raise _invalid(place, "must be a time such as 500ms, 2s or 1m")


def fields(options: Mapping[str, Checker]) -> Checker:
    """Return a checker for a JSON object with these options."""
    return lambda reader, value, place: reader.fields_of(value, place, options)


def one_or_many(check: Checker) -> Checker:
    """Return a checker for one value or a list of such values."""

    def check_each(reader: _Reader, value: Any, place: str) -> None:
        for item in value if isinstance(value, list) else [value]:
            check(reader, item, place)

    return check_each


def list_of(check: Checker) -> Checker:
    """Return a checker for a list of values."""

    def check_each(reader: _Reader, value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise _invalid(place, "must be a list")
        for item in value:
            check(reader, item, place)

    return check_each


def scalar_or(check: Checker) -> Checker:
    """Return a checker for a scalar or a value that passes ``check``."""
    return lambda reader, value, place: None if _is_scalar(value) else check(reader, value, place)


def named(check: Checker) -> Checker:
    """Return a checker for a JSON object with arbitrary keys, whose values pass ``check``."""

    def check_each(reader: _Reader, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _invalid(place, "must be a JSON object")
        for part in value.values():
            check(reader, part, place)

    return check_each


def _each(names: Iterable[str], check: Checker) -> dict[str, Checker]:
    return dict.fromkeys(names, check)


def _query(reader: _Reader, value: Any, place: str) -> None:
    reader.query(value, place)


_queries = one_or_many(_query)


def _vector(_: _Reader, value: Any, place: str) -> None:
    if not isinstance(value, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in value):
        raise _invalid(place, "must be a list of numbers")


def _own_index(reader: _Reader, value: Any, place: str) -> None:
    if value != reader.index:
        raise _not_allowed("a lookup in another index", "", place)


# --- queries

_EVERY_QUERY: dict[str, Checker] = {"boost": number(0, MAX_BOOST), "_name": scalar}
_LEAF = (
    _EVERY_QUERY
    | _each(
        (
            "query",
            "value",
            "operator",
            "fuzziness",
            "prefix_length",
            "fuzzy_transpositions",
            "fuzzy_rewrite",
            "rewrite",
            "analyzer",
            "auto_generate_synonyms_phrase_query",
            "cutoff_frequency",
            "lenient",
            "max_expansions",
            "minimum_should_match",
            "zero_terms_query",
            "slop",
            "case_insensitive",
            "wildcard",
            "flags",
            "flags_value",
            "transpositions",
            "term",
            "gt",
            "gte",
            "lt",
            "lte",
            "from",
            "to",
            "include_lower",
            "include_upper",
            "format",
            "relation",
            "time_zone",
            "max_gaps",
            "ordered",
        ),
        scalar,
    )
    | {"max_determinized_states": whole(1, 10_000)}
)
"""Options of clauses that search one field for a text or a value."""
_TEXTS: dict[str, Checker] = _LEAF | _each(
    (
        "fields",
        "type",
        "tie_breaker",
        "default_field",
        "default_operator",
        "all_fields",
        "allow_leading_wildcard",
        "analyze_wildcard",
        "auto_generate_phrase_queries",
        "enable_position_increments",
        "escape",
        "fuzzy_max_expansions",
        "fuzzy_prefix_length",
        "phrase_slop",
        "quote_analyzer",
        "quote_field_suffix",
        "use_dis_max",
    ),
    scalars,
)
"""Options of clauses that search several fields for a text."""

_by_field = named(scalar_or(fields(_LEAF)))

_LOOKUP: dict[str, Checker] = {"index": _own_index, "id": scalar, "path": scalar, "routing": scalar}


def _terms_of_field(reader: _Reader, value: Any, place: str) -> None:
    if isinstance(value, dict):
        reader.fields_of(value, place, _LOOKUP, "the option of a terms lookup")
        if "index" not in value:
            raise _not_allowed("a lookup without its index", "", place)
    else:
        scalars(reader, value, place)


_LIKE: dict[str, Checker] = {"_index": _own_index, "_id": scalar, "fields": scalars, "routing": scalar}

_POINT_NAMES = (
    "lat",
    "lon",
    "x",
    "y",
    "top_left",
    "bottom_right",
    "top_right",
    "bottom_left",
    "top",
    "left",
    "bottom",
    "right",
    "wkt",
    "geohash",
    "geotile",
    "geohex",
    "points",
    "type",
    "coordinates",
    "geometries",
    "radius",
    "orientation",
    "relation",
    "shape",
)


def _place_on_earth(reader: _Reader, value: Any, place: str) -> None:
    """Check a point, a box or an inline shape: known keys, lists and scalars. References to stored shapes fail."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in _POINT_NAMES:
                raise _not_allowed("the option", name, place)
            _place_on_earth(reader, part, place)
    elif isinstance(value, list):
        for part in value:
            _place_on_earth(reader, part, place)
    else:
        scalar(reader, value, place)


_GEO_OPTIONS: dict[str, Checker] = _EVERY_QUERY | _each(
    ("distance", "distance_type", "validation_method", "ignore_unmapped", "type", "unit", "optimize_bbox"), scalar
)


def _geo(reader: _Reader, value: Any, place: str) -> None:
    """Check a geo clause: known options, and fields whose values are points or shapes."""
    if not isinstance(value, dict):
        raise _invalid(place, "must be a JSON object")
    for name, part in value.items():
        _GEO_OPTIONS.get(name, _place_on_earth)(reader, part, place)


_KNN: dict[str, Checker] = _EVERY_QUERY | {
    "field": scalar,
    "query_vector": scalar_or(_vector),
    "vector": _vector,
    "k": whole(1, MAX_HITS),
    "num_candidates": whole(1, MAX_HITS),
    "similarity": scalar,
    "min_score": scalar,
    "max_distance": scalar,
    "filter": _queries,
    "method_parameters": named(scalar),
    "ignore_unmapped": scalar,
    "rescore_vector": fields({"oversample": number(0, 100)}),
    "rescore": scalar_or(fields({"oversample_factor": number(0, 100)})),
}


def _inner_hits(reader: _Reader, value: Any, place: str) -> None:
    reader.fields_of(value, place, INNER_HITS)


def _knn_query(reader: _Reader, value: Any, place: str) -> None:
    """Check a ``knn`` clause in the format of Elasticsearch (options) or OpenSearch (options per field)."""
    if isinstance(value, dict) and not value.keys() & {"field", "query_vector"}:
        named(fields(_KNN))(reader, value, place)
    else:
        reader.fields_of(value, place, _KNN | {"inner_hits": _inner_hits})


_INTERVAL_FILTERS = (
    "after",
    "before",
    "contained_by",
    "containing",
    "not_contained_by",
    "not_containing",
    "not_overlapping",
    "overlapping",
)


def _interval(reader: _Reader, value: Any, place: str) -> None:
    """Check the rule of an ``intervals`` clause."""
    reader.clauses += 1
    if reader.clauses > MAX_CLAUSES:
        raise _invalid(place, f"has more than {MAX_CLAUSES} query clauses in one body: send fewer")
    reader.fields_of(value, place, _INTERVALS, "the rule")


_INTERVAL_OPTIONS: dict[str, Checker] = _each(
    (
        "query",
        "max_gaps",
        "ordered",
        "analyzer",
        "use_field",
        "prefix",
        "pattern",
        "flags",
        "case_insensitive",
        "max_expansions",
        "term",
        "fuzziness",
        "transpositions",
        "prefix_length",
        "gt",
        "gte",
        "lt",
        "lte",
    ),
    scalar,
) | {"filter": fields(_each(_INTERVAL_FILTERS, _interval)), "intervals": list_of(_interval)}
_INTERVALS: dict[str, Checker] = _EVERY_QUERY | _each(
    ("match", "prefix", "wildcard", "regexp", "fuzzy", "range", "all_of", "any_of"), fields(_INTERVAL_OPTIONS)
)


_decay = named(scalar_or(fields({"origin": _place_on_earth} | _each(("scale", "offset", "decay"), scalar))))
_FUNCTION: dict[str, Checker] = {
    "filter": _query,
    "weight": number(0, MAX_BOOST),
    "random_score": fields(_each(("seed", "field"), scalar)),
    "field_value_factor": fields(_each(("field", "factor", "modifier", "missing"), scalar)),
    **_each(("gauss", "linear", "exp"), _decay),
    "_name": scalar,
}
_JOIN: dict[str, Checker] = (
    _EVERY_QUERY
    | _each(
        ("path", "type", "parent_type", "score_mode", "score", "min_children", "max_children", "ignore_unmapped", "id"),
        scalar,
    )
    | {"query": _query, "inner_hits": _inner_hits}
)
_PINNED_DOCUMENT: dict[str, Checker] = {"_index": _own_index, "_id": scalar}

QUERIES: Final[Mapping[str, Checker]] = {
    **_each(
        (
            "match",
            "match_phrase",
            "match_phrase_prefix",
            "match_bool_prefix",
            "term",
            "range",
            "prefix",
            "wildcard",
            "regexp",
            "fuzzy",
            "span_term",
        ),
        _by_field,
    ),
    **_each(("multi_match", "combined_fields", "query_string", "simple_query_string"), fields(_TEXTS)),
    "terms": named(_terms_of_field),
    "terms_set": named(scalar_or(fields(_LEAF | {"terms": scalars, "minimum_should_match_field": scalar}))),
    **_each(("match_all", "match_none"), fields(_EVERY_QUERY)),
    "exists": fields(_EVERY_QUERY | {"field": scalar}),
    "ids": fields(_EVERY_QUERY | {"values": scalars, "type": scalars}),
    "bool": fields(
        _EVERY_QUERY
        | _each(("must", "should", "filter", "must_not"), _queries)
        | {"minimum_should_match": scalar, "adjust_pure_negative": scalar}
    ),
    "dis_max": fields(_EVERY_QUERY | {"queries": _queries, "tie_breaker": scalar}),
    "constant_score": fields(_EVERY_QUERY | {"filter": _query}),
    "boosting": fields(_EVERY_QUERY | {"positive": _query, "negative": _query, "negative_boost": number(0, MAX_BOOST)}),
    "function_score": fields(
        _EVERY_QUERY
        | _FUNCTION
        | {
            "query": _query,
            "functions": list_of(fields(_FUNCTION)),
            "score_mode": scalar,
            "boost_mode": scalar,
            "max_boost": number(0, MAX_BOOST),
            "min_score": scalar,
        }
    ),
    "nested": fields(_JOIN),
    "has_child": fields(_JOIN),
    "has_parent": fields(_JOIN),
    "parent_id": fields(_JOIN),
    "hybrid": fields(_EVERY_QUERY | {"queries": _queries, "filter": _queries, "pagination_depth": whole(0, MAX_HITS)}),
    "pinned": fields(
        _EVERY_QUERY
        | {
            "ids": scalars,
            "docs": list_of(fields(_PINNED_DOCUMENT)),
            "documents": list_of(fields(_PINNED_DOCUMENT)),
            "organic": _query,
        }
    ),
    "more_like_this": fields(
        _EVERY_QUERY
        | {
            "fields": scalars,
            "like": one_or_many(scalar_or(fields(_LIKE))),
            "unlike": one_or_many(scalar_or(fields(_LIKE))),
            "stop_words": scalars,
            "max_query_terms": whole(1, MAX_CLAUSES),
        }
        | _each(
            (
                "min_term_freq",
                "min_doc_freq",
                "max_doc_freq",
                "min_word_length",
                "max_word_length",
                "analyzer",
                "minimum_should_match",
                "fail_on_unsupported_field",
                "boost_terms",
                "include",
            ),
            scalar,
        )
    ),
    "distance_feature": fields(_EVERY_QUERY | {"field": scalar, "origin": _place_on_earth, "pivot": scalar}),
    "rank_feature": fields(
        _EVERY_QUERY
        | {"field": scalar}
        | _each(
            ("saturation", "log", "sigmoid", "linear"), fields(_each(("pivot", "scaling_factor", "exponent"), scalar))
        )
    ),
    "knn": _knn_query,
    "sparse_vector": fields(
        _EVERY_QUERY
        | {
            "field": scalar,
            "query_vector": named(scalar),
            "inference_id": scalar,
            "query": scalar,
            "prune": scalar,
            "pruning_config": named(scalar),
        }
    ),
    "semantic": fields(_EVERY_QUERY | {"field": scalar, "query": scalar}),
    **_each(
        ("neural", "neural_sparse"),
        named(
            fields(
                _EVERY_QUERY
                | {"k": whole(1, MAX_HITS), "filter": _query, "query_tokens": named(scalar)}
                | _each(("query_text", "model_id", "analyzer", "min_score", "max_distance", "max_token_score"), scalar)
            )
        ),
    ),
    "intervals": named(_interval),
    "span_near": fields(_EVERY_QUERY | {"clauses": _queries, "slop": scalar, "in_order": scalar}),
    "span_or": fields(_EVERY_QUERY | {"clauses": _queries}),
    "span_first": fields(_EVERY_QUERY | {"match": _query, "end": scalar}),
    "span_not": fields(_EVERY_QUERY | {"include": _query, "exclude": _query} | _each(("dist", "pre", "post"), scalar)),
    **_each(("span_containing", "span_within"), fields(_EVERY_QUERY | {"big": _query, "little": _query})),
    "span_multi": fields(_EVERY_QUERY | {"match": _query}),
    **_each(("span_field_masking", "field_masking_span"), fields(_EVERY_QUERY | {"query": _query, "field": scalar})),
    **_each(("geo_distance", "geo_bounding_box", "geo_polygon", "geo_shape", "geo_grid", "shape", "xy_shape"), _geo),
}
"""Allowed query clauses -> checker.

Deliberately missing: ``script``, ``script_score``, ``rule`` and ``template`` run stored or submitted code; ``wrapper``
hides a query from this list; ``percolate`` and ``geo_shape`` with ``indexed_shape`` read other indexes.
"""


# --- parts of hits

_SORT_OPTIONS: dict[str, Checker] = _each(
    ("order", "mode", "missing", "unmapped_type", "numeric_type", "format", "unit", "distance_type", "ignore_unmapped"),
    scalar,
)


def _sort_nested(reader: _Reader, value: Any, place: str) -> None:
    reader.fields_of(value, place, {"path": scalar, "max_children": scalar, "filter": _query, "nested": _sort_nested})


_SORT_BY_FIELD: dict[str, Checker] = _SORT_OPTIONS | {"nested": _sort_nested}


def _sort_key(reader: _Reader, value: Any, place: str) -> None:
    """Check one key of ``sort``: ``"price"``, ``{"price": "asc"}`` or ``{"price": {...}}``."""
    if _is_scalar(value):
        if value == "_script":
            raise _not_allowed("the sort key", "_script", place)
        return
    if not isinstance(value, dict):
        raise _invalid(place, "must be a field, an object or a list of these")
    for name, part in value.items():
        if name == "_script":
            raise _not_allowed("the sort key", name, place)
        if name == "_geo_distance":
            if not isinstance(part, dict):
                raise _invalid(place, "must have a JSON object under _geo_distance")
            for option, inner in part.items():
                _SORT_BY_FIELD.get(option, _place_on_earth)(reader, inner, place)
        else:
            scalar_or(fields(_SORT_BY_FIELD))(reader, part, place)


_sort = one_or_many(_sort_key)
_source = scalar_or(
    lambda reader, value, place: (
        scalars(reader, value, place)
        if isinstance(value, list)
        else reader.fields_of(value, place, _each(("includes", "excludes", "include", "exclude"), scalars))
    )
)
_field_list = one_or_many(scalar_or(fields(_each(("field", "format", "include_unmapped"), scalar))))
_HIGHLIGHT: dict[str, Checker] = _each(
    (
        "type",
        "fragment_size",
        "pre_tags",
        "post_tags",
        "encoder",
        "require_field_match",
        "order",
        "no_match_size",
        "boundary_scanner",
        "boundary_scanner_locale",
        "boundary_max_scan",
        "boundary_chars",
        "matched_fields",
        "fragmenter",
        "fragment_offset",
        "phrase_limit",
        "tags_schema",
        "max_analyzed_offset",
        "force_source",
        "highlight_filter",
        "max_fragment_length",
        "max_analyzer_offset",
    ),
    scalars,
) | {"number_of_fragments": whole(0, 100), "highlight_query": _query}
_highlight = fields(_HIGHLIGHT | {"fields": one_or_many(named(fields(_HIGHLIGHT)))})
_SHOWN: dict[str, Checker] = {
    "_source": _source,
    "fields": _field_list,
    "docvalue_fields": _field_list,
    "stored_fields": scalars,
    "highlight": _highlight,
    "explain": scalar,
    "version": scalar,
    "seq_no_primary_term": scalar,
    "track_scores": scalar,
    "sort": _sort,
}
INNER_HITS: Final[Mapping[str, Checker]] = _SHOWN | {
    "name": scalar,
    "from": whole(0, MAX_INNER_HITS),
    "size": whole(0, MAX_INNER_HITS),
    "ignore_unmapped": scalar,
    "collapse": fields({"field": scalar}),
}
"""Options of ``inner_hits``."""


# --- aggregations

_BUCKETS_PATH = scalar_or(named(scalar))
_RANGE = fields(_each(("from", "to", "key", "mask"), scalar))
_ORDER = one_or_many(named(scalar))
_BOUNDS = fields(_each(("min", "max"), scalar))
_FIELD_VALUE = fields(_each(("field", "missing", "format", "value_type", "time_zone", "include", "exclude"), scalar))

AGGREGATION_OPTIONS: Final[Mapping[str, Checker]] = {
    **_each(
        (
            "field",
            "fields",
            "missing",
            "format",
            "value_type",
            "min_doc_count",
            "shard_min_doc_count",
            "max_doc_count",
            "collect_mode",
            "execution_hint",
            "show_term_doc_count_error",
            "keyed",
            "interval",
            "fixed_interval",
            "calendar_interval",
            "minimum_interval",
            "offset",
            "time_zone",
            "unit",
            "distance_type",
            "precision",
            "percents",
            "values",
            "sigma",
            "path",
            "type",
            "seed",
            "gap_policy",
            "lag",
            "window",
            "method",
            "mode",
            "rewrite",
            "ignore_unmapped",
            "other_bucket",
            "other_bucket_key",
            "show_distribution",
            "wrap_longitude",
            "filter_duplicate_text",
            "source_fields",
            "background_is_superset",
            "include_negatives",
            "validation_method",
            "max_docs_per_value",
            "shift",
        ),
        scalars,
    ),
    "size": whole(0, MAX_HITS),
    "shard_size": whole(1, 5 * MAX_HITS),
    "buckets": whole(1, MAX_HITS),
    "precision_threshold": whole(0, 40_000),
    "probability": number(0, 1),
    "compression": number(1, 1000),
    "tdigest": fields({"compression": number(1, 1000), "execution_hint": scalar}),
    "hdr": fields({"number_of_significant_value_digits": whole(0, 5)}),
    "order": _ORDER,
    "sort": _sort,
    "from": whole(0, MAX_HITS),
    "metrics": one_or_many(fields({"field": scalar})),
    "include": scalar_or(
        lambda reader, value, place: (
            scalars(reader, value, place)
            if isinstance(value, list)
            else reader.fields_of(value, place, _each(("partition", "num_partitions", "pattern"), scalar))
        )
    ),
    "exclude": scalars,
    "extended_bounds": _BOUNDS,
    "hard_bounds": _BOUNDS,
    "ranges": list_of(scalar_or(_RANGE)),
    "origin": _place_on_earth,
    "bounds": _place_on_earth,
    "terms": list_of(_FIELD_VALUE),
    "value": _FIELD_VALUE,
    "weight": _FIELD_VALUE,
    "background_filter": _query,
    **_each(("jlh", "chi_square", "gnd", "mutual_information", "percentage"), named(scalar)),
    "buckets_path": _BUCKETS_PATH,
    "after": named(scalar),
    "sources": list_of(
        named(
            named(
                fields(
                    _each(
                        (
                            "field",
                            "missing_bucket",
                            "missing_order",
                            "order",
                            "interval",
                            "fixed_interval",
                            "calendar_interval",
                            "offset",
                            "time_zone",
                            "format",
                            "precision",
                        ),
                        scalar,
                    )
                )
            )
        )
    ),
    **{name: check for name, check in _SHOWN.items() if name not in ("fields", "sort")},
}
"""Options of aggregations of all types together; the engine refuses those that a type does not have."""

_SIZED: Final[Mapping[str, int]] = {
    "terms": 10,
    "rare_terms": 100,
    "significant_terms": 10,
    "significant_text": 10,
    "multi_terms": 10,
    "composite": 10,
    "geohash_grid": MAX_HITS,
    "geotile_grid": MAX_HITS,
    "geohex_grid": MAX_HITS,
    "top_hits": 3,
    "top_metrics": 1,
    "auto_date_histogram": 10,
    "variable_width_histogram": 10,
}
"""Aggregations whose ``size`` (or ``buckets``) bounds the buckets -> default of the engines."""
_UNSIZED: Final = ("histogram", "date_histogram")
_LISTED: Final = ("range", "date_range", "ip_range", "geo_distance")
_SINGLE: Final = (
    "missing",
    "nested",
    "reverse_nested",
    "children",
    "parent",
    "global",
    "sampler",
    "diversified_sampler",
    "random_sampler",
    "avg",
    "sum",
    "min",
    "max",
    "stats",
    "extended_stats",
    "value_count",
    "cardinality",
    "percentiles",
    "percentile_ranks",
    "median_absolute_deviation",
    "weighted_avg",
    "geo_bounds",
    "geo_centroid",
    "string_stats",
    "boxplot",
    "rate",
    "matrix_stats",
    "avg_bucket",
    "sum_bucket",
    "min_bucket",
    "max_bucket",
    "stats_bucket",
    "extended_stats_bucket",
    "percentiles_bucket",
    "cumulative_sum",
    "cumulative_cardinality",
    "derivative",
    "serial_diff",
    "normalize",
    "moving_percentiles",
    "bucket_sort",
)
AGGREGATIONS: Final = frozenset({*_SIZED, *_UNSIZED, *_LISTED, *_SINGLE, "filter", "filters"})
"""Allowed types of aggregations.

Deliberately missing: those that run scripts (``scripted_metric``, ``bucket_script``, ``bucket_selector``,
``moving_fn``) or models (``inference``), and those whose cost no option bounds (``adjacency_matrix``,
``categorize_text``).
"""


def _buckets_of(kind: str, options: Mapping[str, Any]) -> int:
    """Return how many buckets (or hits) an aggregation with these checked options requests."""
    if kind in _SIZED:
        size = options.get("size", options.get("buckets", _SIZED[kind]))
        return max(int(size), 1)
    if kind in _UNSIZED:
        return HISTOGRAM_BUCKETS
    if kind in _LISTED:
        return max(len(options.get("ranges", ())), 1)
    return 1


def _aggregation(reader: _Reader, value: Any, place: str) -> int:
    """Check one aggregation and its sub-aggregations; return the number of buckets that they request together."""
    reader.aggregations += 1
    if reader.aggregations > MAX_AGGREGATIONS:
        raise _invalid(place, f"has more than {MAX_AGGREGATIONS} aggregations: send fewer")
    if not isinstance(value, dict):
        raise _invalid(place, "must contain one JSON object per aggregation")
    own, inner = 1, 0
    for name, part in value.items():
        if name in ("aggs", "aggregations"):
            inner += _buckets(reader, part, name)
        elif name == "meta":
            named(scalar)(reader, part, name)
        elif name == "filter":
            reader.query(part, name)
        elif name == "filters":
            own = _filters(reader, part, name)
        elif name in AGGREGATIONS:
            options = {**AGGREGATION_OPTIONS, **({"size": whole(0, MAX_INNER_HITS)} if name == "top_hits" else {})}
            reader.fields_of(part, name, options)
            own = _buckets_of(name, part)
        else:
            raise _not_allowed("the aggregation", name, place)
    return own * max(inner, 1)


def _filters(reader: _Reader, value: Any, place: str) -> int:
    reader.fields_of(
        value,
        place,
        {
            "filters": lambda reader, part, place: (_queries if isinstance(part, list) else named(_query))(
                reader, part, place
            ),
            "other_bucket": scalar,
            "other_bucket_key": scalar,
            "keyed": scalar,
        },
    )
    return max(len(value.get("filters", ())), 1)


def _buckets(reader: _Reader, value: Any, place: str) -> int:
    if not isinstance(value, dict):
        raise _invalid(place, "must be a JSON object of aggregations")
    return sum(_aggregation(reader, part, place) for part in value.values())


def _aggregations(reader: _Reader, value: Any, place: str) -> None:
    asked = _buckets(reader, value, place)
    if asked > MAX_BUCKETS:
        raise _invalid(
            place, f"request {asked} buckets, more than the {MAX_BUCKETS} allowed in one body: lower their sizes"
        )


# --- suggestions

_SUGGEST_OPTIONS: dict[str, Checker] = _each(
    (
        "field",
        "analyzer",
        "sort",
        "suggest_mode",
        "max_edits",
        "prefix_length",
        "min_word_length",
        "max_inspections",
        "min_doc_freq",
        "max_term_freq",
        "string_distance",
        "lowercase_terms",
        "gram_size",
        "real_word_error_likelihood",
        "confidence",
        "max_errors",
        "separator",
        "skip_duplicates",
        "text",
    ),
    scalar,
) | {
    "size": whole(1, 1000),
    "shard_size": whole(1, 10_000),
    "highlight": fields(_each(("pre_tag", "post_tag"), scalar)),
    "smoothing": named(named(scalar)),
    "direct_generator": list_of(
        fields(
            _each(
                (
                    "field",
                    "size",
                    "suggest_mode",
                    "max_edits",
                    "prefix_length",
                    "min_word_length",
                    "max_inspections",
                    "min_doc_freq",
                    "max_term_freq",
                    "pre_filter",
                    "post_filter",
                    "string_distance",
                    "sort",
                    "lowercase_terms",
                ),
                scalar,
            )
        )
    ),
    "fuzzy": scalar_or(
        fields(
            _each(
                (
                    "fuzziness",
                    "transpositions",
                    "min_length",
                    "prefix_length",
                    "unicode_aware",
                    "max_determinized_states",
                ),
                scalar,
            )
        )
    ),
    "regex": fields({"flags": scalar, "max_determinized_states": whole(1, 10_000)}),
    "contexts": named(
        one_or_many(
            scalar_or(
                fields(
                    {
                        "context": _place_on_earth,
                        "boost": number(0, MAX_BOOST),
                        "prefix": scalar,
                        "precision": scalars,
                        "neighbours": scalars,
                        "lat": scalar,
                        "lon": scalar,
                    }
                )
            )
        )
    ),
}
_SUGGESTER: dict[str, Checker] = _each(("text", "prefix", "regex"), scalar) | _each(
    ("term", "phrase", "completion"), fields(_SUGGEST_OPTIONS)
)
_suggest = named(scalar_or(fields(_SUGGESTER)))


# --- retrievers, rescoring and the body


def _retriever(reader: _Reader, value: Any, place: str) -> None:
    reader.fields_of(value, place, RETRIEVERS, "the retriever")


_EVERY_RETRIEVER: dict[str, Checker] = {"filter": _queries, "min_score": scalar, "_name": scalar}
_FUSED: dict[str, Checker] = _EVERY_RETRIEVER | {
    "rank_window_size": whole(1, MAX_HITS),
    "rank_constant": whole(1, MAX_HITS),
    "fields": scalars,
    "query": scalar,
    "normalizer": scalar,
}
_rescore_query = fields(
    {"rescore_query": _query, "score_mode": scalar}
    | _each(("query_weight", "rescore_query_weight"), number(0, MAX_BOOST))
)
_rescore = one_or_many(fields({"window_size": whole(1, MAX_HITS), "query": _rescore_query}))


def _weighted_retriever(reader: _Reader, value: Any, place: str) -> None:
    """Check a retriever, or an object of a retriever and its weight (``linear``, ``rrf``)."""
    if isinstance(value, dict) and "retriever" in value:
        options = {"retriever": _retriever, "weight": number(0, MAX_BOOST), "normalizer": scalar}
        reader.fields_of(value, place, options)
    else:
        _retriever(reader, value, place)


RETRIEVERS: Final[Mapping[str, Checker]] = {
    "standard": fields(
        _EVERY_RETRIEVER
        | {
            "query": _query,
            "sort": _sort,
            "search_after": scalars,
            "terminate_after": whole(0, 2**31 - 1),
            "collapse": fields({"field": scalar, "inner_hits": one_or_many(_inner_hits)}),
        }
    ),
    "knn": fields(_EVERY_RETRIEVER | _KNN),
    **_each(("rrf", "linear"), fields(_FUSED | {"retrievers": list_of(_weighted_retriever)})),
    "rescorer": fields(_EVERY_RETRIEVER | {"retriever": _retriever, "rescore": _rescore}),
    "pinned": fields(
        _EVERY_RETRIEVER
        | {
            "ids": scalars,
            "docs": list_of(fields(_PINNED_DOCUMENT)),
            "retriever": _retriever,
            "rank_window_size": whole(1, MAX_HITS),
        }
    ),
}
"""Allowed Elasticsearch retrievers. Those that call a model (``text_similarity_reranker``) are deliberately missing."""

_UBI = fields(
    _each(("query_id", "user_query", "client_id", "session_id", "application", "object_id_field", "store"), scalar)
    | {"query_attributes": named(scalars)}
)
_RERANK_CONTEXT = fields({"query_context": fields(_each(("query_text", "query_text_path"), scalar))})

BODY_OPTIONS: Final[Mapping[str, Checker]] = _SHOWN | {
    "query": _query,
    "post_filter": _query,
    "from": whole(0, MAX_HITS),
    "size": whole(0, MAX_HITS),
    "min_score": scalar,
    "track_total_hits": scalar,
    "timeout": timeout,
    "terminate_after": whole(0, 2**31 - 1),
    "search_after": scalars,
    "aggs": _aggregations,
    "aggregations": _aggregations,
    "suggest": _suggest,
    "rescore": _rescore,
    "knn": one_or_many(fields(_KNN | {"inner_hits": _inner_hits})),
    "retriever": _retriever,
    "collapse": fields(
        {"field": scalar, "inner_hits": one_or_many(_inner_hits), "max_concurrent_group_searches": whole(0, 16)}
    ),
    "ext": fields({"ubi": _UBI, "rerank": _RERANK_CONTEXT}),
}
"""Allowed parts of a search body.

Deliberately missing: ``pit``, ``scroll`` and ``slice`` export the index; ``runtime_mappings``, ``derived`` and
``script_fields`` contain scripts; ``search_pipeline`` runs stored processors; ``stats`` and ``profile`` are for the
operator.
"""
