"""The memory engine's inverted index gives the scores of Lucene's formula, whatever was written and removed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.engines.language import Words
from tests.engines.memory import Postings

WORDS = ("ape", "bee", "cat", "dog")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from(WORDS), max_size=6)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
    ),
    max_size=40,
)
QUERIES = [
    Words("text", (("ape", 1), ("bee", 2)), boost=1.0),
    Words("text", (("cat", 1), ("dog", 1), ("ape", 1)), boost=2.0, minimum=2),
    Words("text", (("absent", 1),), boost=1.0),
]


def lucene(documents: dict[int, list[str]], query: Words) -> dict[int, float]:
    """Return the scores by the definition, one document at a time."""
    filled = {place: words for place, words in documents.items() if words}
    mean = sum(map(len, filled.values())) / max(len(filled), 1)
    found = {}
    for place, words in filled.items():
        score, matched = 0.0, 0
        for word, times in query.words:
            tf, df = words.count(word), sum(word in one for one in filled.values())
            idf = math.log(1 + (len(filled) - df + 0.5) / (df + 0.5))
            score += query.boost * times * idf * 2.2 * tf / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean))
            matched += times if tf else 0
        if matched >= max(query.minimum, 1):
            found[place] = score
    return found


@settings(max_examples=150)
@given(ACTIONS)
def test_scores_are_those_of_the_definition_after_any_changes(actions: list[tuple[str, object]]) -> None:
    index, documents = Postings(), {}
    for place, (action, value) in enumerate(actions):
        if action == "add":
            assert isinstance(value, list)
            documents[place] = value
            index.add(place, [" ".join(value)])
        elif documents:
            assert isinstance(value, int)
            gone = sorted(documents)[value % len(documents)]
            index.remove(gone, [" ".join(documents.pop(gone))])
    for query in QUERIES:
        assert index.score(query) == pytest.approx(lucene(documents, query), rel=1e-12)
    for word in WORDS:
        assert sorted(index.places(word)) == [place for place, words in documents.items() if word in words]
