"""Boolean retrieval: the course's example, the algebra of AND, OR and NOT, and queries that are none."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.inverted_file import (
    And,
    BooleanRetrieval,
    BooleanScorer,
    Expression,
    Not,
    Or,
    Word,
    disjunctive_form,
    invert,
    parse,
)
from reranker.errors import ConfigError, InputError, ShapeMismatch

WORDS = {"prog": 0, "lang": 1, "C": 2, "java": 3}
# d1 (prog, lang, C), d2 (prog, lang), d3 (java): COURSE's example.
ROWS = sp.csr_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]], np.float32))
RETRIEVAL = BooleanRetrieval(invert(ROWS), WORDS)


def test_B17_the_example_of_the_course_matches_d1_alone() -> None:
    query = "prog AND lang AND (C OR java)"
    assert RETRIEVAL.search(query).tolist() == [0]
    np.testing.assert_array_equal(RETRIEVAL.scores([query, "java"]), [[1, 0, 0], [0, 0, 1]])
    assert disjunctive_form(parse(query)) == (
        frozenset({("C", True), ("lang", True), ("prog", True)}),
        frozenset({("java", True), ("lang", True), ("prog", True)}),
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("NOT prog", [2]),
        ("prog AND NOT C", [1]),
        ("NOT (prog AND C)", [1, 2]),
        ("java OR prog AND C", [0, 2]),  # AND binds tighter
        ("(java OR prog) AND C", [0]),
        ("NOT NOT java", [2]),
        ("python", []),
        ("NOT python", [0, 1, 2]),
        ('"prog" AND "lang"', [0, 1]),
    ],
)
def test_operators(query: str, expected: list[int]) -> None:
    assert RETRIEVAL.search(query).tolist() == expected


def test_words_in_quotes_are_no_operators() -> None:
    assert parse('"AND" OR and') == Or((Word("AND"), Word("and")))
    assert parse('"a (b" AND NOT c') == And((Word("a (b"), Not(Word("c"))))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "the query ends where a word, NOT or an opening parenthesis was expected"),
        ("prog lang", "'lang' stands at character 6 where AND, OR or the end was expected"),
        ("prog AND", "the query ends where a word"),
        ("AND prog", "'AND' stands at character 1"),
        ("(prog OR lang", "the query ends where a closing parenthesis"),
        ("prog)", "'\\)' stands at character 5"),
        ('prog AND "lang', "without its end at character 9"),
        ("NOT " * 200 + "prog", "more than 100"),
    ],
)
def test_what_is_no_expression_is_refused(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RETRIEVAL.search(query)


LEAVES: st.SearchStrategy[Expression] = st.sampled_from([*WORDS, "none"]).map(Word)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_B17_a_document_matches_if_and_only_if_it_satisfies_a_conjunct(expression: Expression) -> None:
    dense = ROWS.toarray() > 0
    held = [{word for word, number in WORDS.items() if row[number]} for row in dense]
    conjuncts = disjunctive_form(expression)
    expected = [
        document
        for document, words in enumerate(held)
        if any(all((word in words) == wanted for word, wanted in conjunct) for conjunct in conjuncts)
    ]
    assert RETRIEVAL.search(expression).tolist() == expected


def test_too_many_conjuncts_are_refused() -> None:
    wide = And(tuple(Or((Word(f"a{n}"), Word(f"b{n}"))) for n in range(20)))
    with pytest.raises(InputError, match="more than 10,000 conjuncts"):
        disjunctive_form(wide)


def test_B17_scorers_of_texts_ask_for_all_or_any_word() -> None:
    queries = sp.csr_matrix(np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]], np.float32))
    np.testing.assert_array_equal(BooleanScorer("AND").score_matrix(queries, ROWS), [[1, 0, 0], [1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(BooleanScorer("OR").score_matrix(queries, ROWS), [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    for scorer in (BooleanScorer("AND"), BooleanScorer("OR")):
        np.testing.assert_array_equal(scorer.score_pairs(queries, ROWS), np.diag(scorer.score_matrix(queries, ROWS)))


def test_scorers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="choose AND or OR"):
        BooleanScorer("XOR")  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="use one vocabulary"):
        BooleanScorer().score_matrix(ROWS[:, :2], ROWS)
    with pytest.raises(ShapeMismatch, match="not pairs"):
        BooleanScorer().score_pairs(ROWS[:2], ROWS)
