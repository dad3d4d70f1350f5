"""The facts of search bodies that are kept, and filling a template by them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines.bodies import PLACE, fill_template, places_of
from reranker.engines.query_syntax import UnreadableQueryError, asked_text, may_have_syntax
from reranker.engines.wire import changed_texts
from reranker.rerank import known_bodies
from reranker.rerank.calibration.bodies import ScoringParts, body_hash, signature_of
from reranker.rerank.candidates import has_key
from reranker.rerank.known_bodies import BodyFacts, KnownBodies

texts = st.sampled_from([PLACE, f"a {PLACE} b {PLACE}", "red", "", "title^2"])
names = st.sampled_from(
    ["query", "bool", "must", "filter", "query_string", "simple_query_string", "match", "title", "pinned", "knn"]
)
values = st.recursive(
    texts | st.none() | st.booleans() | st.integers(0, 2) | st.just(1.0),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3) | st.tuples(inner) | st.tuples()
    ),
    max_leaves=12,
)
bodies = st.dictionaries(names, values, max_size=3)


@given(st.lists(bodies, max_size=6))
def test_kept_facts_are_those_of_the_body(searched: list[dict[str, Any]]) -> None:
    known = KnownBodies()
    for body in [*searched, *searched]:
        assert known.facts(body) == BodyFacts.of(body)
        assert known.facts(body).scoring == ScoringParts(body_hash(body), signature_of(body))


def test_bodies_that_are_equal_in_python_but_not_in_json_have_facts_of_their_own() -> None:
    known = KnownBodies()
    for value in ([PLACE], (PLACE,), 1, True, 1.0):
        known.facts({"query": value})
    assert len(known._known) == 5
    assert known.facts({"query": [PLACE]}).places == {"query": {0: {}}}
    assert known.facts({"query": (PLACE,)}).places is None


def test_few_short_bodies_of_json_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_bodies, "MAX_KNOWN_BODIES", 3)
    known = KnownBodies()
    strange: dict[str, Any] = {"query": MappingProxyType({"match": PLACE})}
    assert known.facts(strange).places == {"query": {"match": {}}}
    known.facts({"query": PLACE * known_bodies.MAX_KNOWN_BYTES})
    assert not known._known
    for number in range(10):
        known.facts({"query": PLACE, "size": number})
        assert len(known._known) <= 3


@given(bodies, st.sampled_from(["", "red shoe", PLACE, "{{query"]))
def test_a_filled_template_is_a_copy_with_other_texts(body: dict[str, Any], query: str) -> None:
    body["place"] = PLACE
    before = copy.deepcopy(body)
    expected = changed_texts(body, lambda text: text.replace(PLACE, query))
    assert fill_template(body, query) == fill_template(body, query, places_of(body)) == expected
    assert list(fill_template(body, query)) == list(body)
    assert body == before


@given(bodies, st.sampled_from(["red -boot", "red", "(", "a*"]))
def test_a_body_without_syntax_asks_for_the_query_itself(body: dict[str, Any], query: str) -> None:
    try:
        asked: str | None = asked_text(body, query, PLACE)
    except UnreadableQueryError:
        asked = None
    assert asked == query or may_have_syntax(body, PLACE)


def contains_key(node: Any, names: set[str]) -> bool:
    """Return what `has_key` returns, by recursion."""
    if isinstance(node, Mapping):
        return any(name in names or contains_key(value, names) for name, value in node.items())
    return isinstance(node, (list, tuple)) and any(contains_key(item, names) for item in node)


@given(values, st.sets(names, max_size=2))
def test_a_key_is_found_wherever_it_stands(value: Any, wanted: set[str]) -> None:
    assert has_key(value, wanted) == contains_key(value, wanted)
    assert has_key(MappingProxyType({"a": value}), wanted) == contains_key(value, wanted)
