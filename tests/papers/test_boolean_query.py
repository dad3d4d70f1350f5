"""Boolean queries: the course's example, precedence, places of errors, and sets against Python's own."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.methods.boolean_query import Expression, Joined, Not, RarestPairs, Word, matching, parse_boolean, words_of
from papers.methods.inverted_file import invert
from reranker.errors import InputError

WORDS = ("prog", "lang", "c", "java")
# d0 (prog, lang, C), d1 (prog, lang), d2 (java): COURSE's example. d3 has no word.
FILE = invert(sp.csr_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.float32)))


def analyze(text: str) -> list[str]:
    return [part for part in text.lower().replace("-", " ").split() if part not in ("the", "!")]


def found(query: str) -> list[int]:
    expression = parse_boolean(query, analyze)
    documents = matching(expression, FILE, {word: number for number, word in enumerate(WORDS)}.get)
    return [int(document) for document in documents]


@pytest.mark.parametrize(
    ("query", "documents"),
    [
        ("prog AND lang AND (C OR java)", [0]),
        ("prog lang (c or java)", [0]),
        ("prog AND lang AND C OR java", [0, 2]),  # AND binds tighter than OR
        ("prog AND NOT c", [1]),
        ("NOT (prog OR java)", [3]),
        ("not not java", [2]),
        ("NOT prog AND NOT java", [3]),
        ("c OR nowhere", [0]),
        ("c AND nowhere", []),
        ("nowhere", []),
        ("prog-lang", [0, 1]),
        ("((java))", [2]),
    ],
)
def test_B17_queries_match_the_documents_of_the_course(query: str, documents: list[int]) -> None:
    assert found(query) == documents


def test_B17_quoted_operators_are_words() -> None:
    assert parse_boolean('"not" OR "C"', analyze) == Joined("OR", (Word("not"), Word("c")))
    assert words_of(parse_boolean("a (b OR NOT a) c", analyze)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("(prog AND lang", r"'\(' at character 1 is not closed"),
        ("prog AND (", r"'\(' at character 10 is not closed"),
        ("a (b (c) d", r"'\(' at character 3 is not closed"),
        ("prog) OR c", r"'\)' at character 5 has no '\('"),
        (") a", r"'\)' at character 1 has no '\('"),
        ("a ()", "the parenthesis at character 3 has no word after it"),
        ("AND c", "AND at character 1 has no word before it"),
        ("c OR", "OR at character 3 has no word after it"),
        ("c AND OR d", "AND at character 3 has no word after it"),
        ("(c AND) d", "AND at character 4 has no word after it"),
        ("not", "not at character 1 has no word after it"),
        ("  ", "the query is empty"),
        ('a "b', "quotation mark at character 3 is not closed"),
        ("the", "'the' at character 1 has no word after analysis"),
        ("(" * 200 + "a" + ")" * 200, "nested deeper than 100"),
    ],
)
def test_B17_errors_give_the_place(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_boolean(query, analyze)


EXPRESSIONS = st.recursive(
    st.sampled_from([*WORDS, "nowhere"]).map(Word),
    lambda inner: st.one_of(
        inner.map(Not),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3).map(tuple)).map(
            lambda parts: Joined(*parts)
        ),
    ),
    max_leaves=12,
)


def written(expression: Expression) -> str:
    if isinstance(expression, Word):
        return expression.text
    if isinstance(expression, Not):
        return f"NOT ({written(expression.operand)})"
    return f" {expression.operator} ".join(f"({written(one)})" for one in expression.operands)


def by_sets(expression: Expression) -> set[int]:
    if isinstance(expression, Word):
        if expression.text not in WORDS:
            return set()
        return {int(row) for row in FILE.postings(WORDS.index(expression.text))[0]}
    if isinstance(expression, Not):
        return {0, 1, 2, 3} - by_sets(expression.operand)
    parts = [by_sets(one) for one in expression.operands]
    return set.union(*parts) if expression.operator == "OR" else set.intersection(*parts)


@settings(max_examples=200)
@given(EXPRESSIONS)
def test_B17_a_written_query_matches_as_its_sets(expression: Expression) -> None:
    assert found(written(expression)) == sorted(by_sets(expression))


def test_B17_two_of_the_three_rarest_words() -> None:
    documents = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 2, 3], [9, 0, 0, 1]], np.float32)
    rarest = RarestPairs(np.array([0.1, 0.9, 0.5, 0.5]))
    # The rarest words are 1, 2 and 3 of the first query, 2 and 0 of the second, 0 of the third; the last has none.
    queries = sp.csr_matrix(np.array([[5, 1, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.float32))
    expected = [[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
    scores = rarest.score_matrix(queries, sp.csr_matrix(documents))
    np.testing.assert_array_equal(scores, expected)
    for column in range(4):
        pairs = rarest.score_pairs(queries, sp.csr_matrix(documents[[column] * 4]))
        np.testing.assert_array_equal(pairs, scores[:, column])
