"""The snippets that pseudo-documents are made of."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.corpora import snippet
from reranker.errors import ConfigError


def test_R04_a_snippet_is_where_the_query_stands() -> None:
    tokens = "the old pump stood by the wood where a wood pump was made of oak".split()
    assert snippet(tokens, {"wood", "pump"}, 3) == ("a", "wood", "pump")
    assert snippet(tokens, {"nowhere"}, 4) == ("the", "old", "pump", "stood")
    assert snippet(tokens[:2], {"old"}, 5) == ("the", "old")
    assert snippet([], {"old"}) == ()


@given(st.lists(st.sampled_from("abcx"), max_size=15), st.sets(st.sampled_from("abc")), st.integers(1, 6))
@settings(max_examples=80)
def test_R04_no_other_place_holds_more_of_the_query(tokens: list[str], query: set[str], n_words: int) -> None:
    windows = [tokens[start : start + n_words] for start in range(max(1, len(tokens) - n_words + 1))]
    expected = max(windows, key=lambda window: len(query & set(window)))
    assert snippet(tokens, query, n_words) == tuple(expected)


def test_nothing_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 word"):
        snippet(["a"], ["a"], 0)
