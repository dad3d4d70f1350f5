"""The memory engine's inverted index: merged postings and recent ones give the same scores as Lucene's formula."""

# The papers' ids are upper case.
# ruff: noqa: N802

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.engines import memory as module
from reranker.engines.dsl import Words
from reranker.engines.memory import Postings

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


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([1, 5, 10**9]))
def test_merged_and_recent_documents_score_alike(actions: list[tuple[str, object]], merge_at: int) -> None:
    before = module.MERGE_ENTRIES
    module.MERGE_ENTRIES = merge_at
    try:
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
    finally:
        module.MERGE_ENTRIES = before
    for query in QUERIES:
        assert index.score(query) == pytest.approx(lucene(documents, query), rel=1e-12)
    for word in WORDS:
        assert sorted(index.places(word)) == [place for place, words in documents.items() if word in words]


def test_R06_a_large_index_is_an_inverted_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGE_ENTRIES", 4)
    index = Postings()
    index.add(3, ["dog cat dog"])
    index.add(8, ["cat bee"])
    segment = index._segment
    assert segment is not None
    documents, counts = segment.postings("cat")
    assert segment.places[documents].tolist() == [3, 8]
    assert counts.tolist() == [1, 1]
    assert segment.postings("dog")[1].tolist() == [2]
    assert segment.lengths.tolist() == [3, 2]
