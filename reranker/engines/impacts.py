"""Impacts in an index: the field of weighted words, and the clauses that add them up. Pure.

Elasticsearch keeps the words in ``sparse_vector``, OpenSearch and the embedded engine in ``rank_features``. All keep 9
bits of a weight and drop the rest, so weights are rounded to 9 bits before they are sent. The key of a word is the
word; in ``rank_features``, where a dot in a key finds nothing, each dot is written as `DOT`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from reranker.arrays import Float64
from reranker.config import IMPACT_MODES, ImpactMode
from reranker.engines.vectors import conditions_of
from reranker.errors import ConfigError, InputError

DOT: Final = "\u2024"
"""Replaces a dot in a key of ``rank_features``: the one dot leader, which no analyzer of ours leaves in a word."""
IMPACTS_ALIAS: Final = "ssi_impacts"
"""Field alias of the live version's impacts on Elasticsearch. On OpenSearch, an alias of such a field finds nothing."""
MAX_KEY_BYTES: Final = 1024
"""Longer words are left out: engines refuse a document for a very long word, and nobody types one."""
LEAST: Final = 1e-6
"""Smaller weights are left out: they change no order, and engines refuse a document for a weight of 0."""
LARGEST: Final = 1e9
"""Larger weights are left out, infinity among them."""
_HALF, _KEPT = 0x4000, ~0x7FFF
"""Half of the last bit that engines keep of a float32, and the mask of the bits that they keep."""


def stored_words(words: Mapping[str, float], field_type: str) -> dict[str, float]:
    """Return impacts by key as an engine stores them, in the order of ``words``.

    Weights are rounded to the bits that engines keep, and written with 4 digits, rounded up: the engine cuts them to
    the same bits. Words that the engine cannot hold are left out.
    """
    merged: dict[str, float] = {}
    for word, weight in words.items():
        key = key_of(word, field_type)
        if key and LEAST <= weight <= LARGEST:
            merged[key] = merged.get(key, 0.0) + weight
    weights = np.fromiter(merged.values(), np.float32, len(merged))
    kept = ((weights.view(np.int32) + _HALF) & _KEPT).view(np.float32).astype(np.float64)
    return dict(zip(merged, _four_digits_up(kept).tolist(), strict=True))


def _four_digits_up(values: Float64) -> Float64:
    """Return positive values rounded up to 4 significant digits; less than the next value of 9 bits."""
    digits = 3 - np.floor(np.log10(values))
    scaled = np.ceil(values * 10.0**digits - 1e-9)
    # Divided, because a quotient by a power of ten is the number that is written with the fewest digits.
    return np.asarray(np.where(digits > 0, scaled / 10.0**digits, scaled * 10.0**-digits), np.float64)


@lru_cache(maxsize=200_000)  # most words are those of many documents
def key_of(word: str, field_type: str) -> str:
    """Return the key of a word in a field of this type; "" if the field cannot hold the word."""
    if len(word.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES or any("\ud800" <= char <= "\udfff" for char in word):
        return ""
    return word.replace(".", DOT) if field_type == "rank_features" else word


def field_value(stored: Mapping[str, float]) -> list[dict[str, float]]:
    """Return `stored_words` as the value of the field in a document.

    A list of one map replaces the words that a document has; a partial update would merge a map into them.
    """
    return [dict(stored)] if stored else []


def digest_of_words(stored: Mapping[str, float]) -> str:
    """Return 16 hexadecimal digits that differ if any stored impact differs, or the order of words."""
    text = "\n".join(f"{word}\t{weight!r}" for word, weight in stored.items())
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()


def impacts_clause(
    field: str,
    field_type: str,
    words: Sequence[str],
    boost: float = 1.0,
    preferred: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the clause whose score is ``boost`` times the sum of a document's impacts of the words.

    It asks for each word by itself, so that it is right for every analyzer. ``preferred`` are the preferences of users
    for the query by document id, which are added to the sum as `raised`. Raises `InputError` if there is no word.
    """
    keys = [key for word in dict.fromkeys(words) if (key := key_of(word, field_type))]
    if not keys:
        raise InputError("the query has no word that the model counts: there are no impacts to add up")
    _check_boost(boost)
    if field_type == "rank_features":
        clauses = [{"rank_feature": {"field": f"{field}.{key}", "boost": boost, "linear": {}}} for key in keys]
    else:
        clauses = [{"term": {field: {"value": key, "boost": boost}}} for key in keys]
    clauses += [
        {"ids": {"values": [document], "boost": boost * weight}} for document, weight in raised(preferred).items()
    ]
    return {"bool": {"should": clauses}}


def raised(preferred: Mapping[str, float]) -> dict[str, float]:
    """Return preferences less the lowest of them, if that is below 0; without those that are then 0.

    A clause cannot take anything away from a score, so all other documents count like the least preferred one.
    """
    least = min(0.0, *preferred.values()) if preferred else 0.0
    return {document: weight - least for document, weight in preferred.items() if weight > least}


def match_clause(field: str, text: str, analyzer: str, boost: float = 1.0) -> dict[str, Any]:
    """Return the clause of Elasticsearch that lets an analyzer of the index split the query.

    Right only if the analyzer gives one token a position; a word that a query repeats counts as often.
    """
    _check_boost(boost)
    return {"match": {field: {"query": text, "analyzer": analyzer, "boost": boost}}}


def _check_boost(boost: float) -> None:
    if not (np.isfinite(boost) and boost > 0):
        raise ConfigError(f"the boost of impacts is {boost!r}: it must be finite and above 0")


def with_impacts(body: Mapping[str, Any], clause: Mapping[str, Any], mode: ImpactMode) -> dict[str, Any]:
    """Return a search body whose query also adds up impacts. Everything else of the body stays as it is.

    In the mode ``find``, the filters of the query hold for the documents that only impacts find.

    Raises
    ------
    ConfigError
        If the body has no ``query``, or searches in another way too.
    """
    if mode not in IMPACT_MODES:
        raise ConfigError(f"mode {mode!r} is not one of {', '.join(IMPACT_MODES)}")
    others = sorted(name for name in ("knn", "retriever", "sub_searches") if name in body)
    query = body.get("query")
    if others or not isinstance(query, Mapping):
        reason = f"it has {others[0]!r}" if others else "it has no query"
        raise ConfigError(f"impacts cannot be added to this body, because {reason}: add the clause by hand")
    if mode == "reorder":
        combined: dict[str, Any] = {"must": [query], "should": [clause]}
    else:
        combined = {"should": [query, clause], "minimum_should_match": 1}
        conditions = conditions_of({"query": query})
        if conditions is not None:
            combined["filter"] = [conditions]
    return {**body, "query": {"bool": copy.deepcopy(combined)}}
