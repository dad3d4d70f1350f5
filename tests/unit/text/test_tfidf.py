"""tf-idf rows: spec 1.1 by hand, then the algebra of rows and fields, then properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.arrays import N_TERM_IDS
from reranker.errors import ConfigError, ShapeMismatch
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import combine, unit_rows
from reranker.text.tfidf import TfIdf, text_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, hashed_id

# Four documents; "all" stands in each, "a" in 2, "b" and "c" in 1.
VOCABULARY = Vocabulary(("all", "a", "b", "c"), np.array([4, 2, 1, 1]), 4)
TOKENS = st.lists(st.lists(st.sampled_from(["all", "a", "b", "c", "unseen", "word"])), max_size=8)


def as_dict(row: object) -> dict[int, float]:
    return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))  # type: ignore[attr-defined]


def test_known_row_with_raw_term_frequency() -> None:
    # w = (a: 2 ln 2, b: 1 ln 4 = 2 ln 2), length 2 ln 2 sqrt 2: both weights are 1/sqrt 2.
    row = TfIdf(VOCABULARY, tf="raw").rows([["a", "b", "a", "all"]])
    assert as_dict(row) == pytest.approx({1: math.sqrt(0.5), 2: math.sqrt(0.5)})


def test_known_row_with_logarithmic_term_frequency() -> None:
    # w = (a: (1 + ln 2) ln 2, c: ln 4), divided by ln 2: (1 + ln 2, 2).
    row = TfIdf(VOCABULARY).rows([["a", "c", "a"]])
    length = math.hypot(1 + math.log(2), 2)
    assert as_dict(row) == pytest.approx({1: (1 + math.log(2)) / length, 3: 2 / length})


def test_length_normalised_and_plain_term_frequency_coincide() -> None:
    # spec 1.1: the two printed forms, (tf / sum tf) idf and tf idf, give one unit vector.
    weights = {1: 3 / 4 * math.log(2), 2: 1 / 4 * math.log(4)}
    length = math.sqrt(sum(weight**2 for weight in weights.values()))
    row = TfIdf(VOCABULARY, tf="raw").rows([["a", "b", "a", "a"]])
    assert as_dict(row) == pytest.approx({term: weight / length for term, weight in weights.items()})


def test_an_unseen_word_counts_with_the_idf_of_the_rarest() -> None:
    row = TfIdf(VOCABULARY).rows([["zx81", "b"]])
    assert as_dict(row) == pytest.approx({hashed_id("zx81"): math.sqrt(0.5), 2: math.sqrt(0.5)})


def test_an_unseen_word_meets_itself_in_the_identity_part() -> None:
    tfidf = TfIdf(VOCABULARY)
    query, documents = tfidf.rows([["zx81"]]), tfidf.rows([["a", "b"], ["a", "zx81"], ["a", "zx80"]])
    scores = [as_dict(documents[i]).get(hashed_id("zx81"), 0.0) * as_dict(query)[hashed_id("zx81")] for i in range(3)]
    assert scores[1] > 0.5
    assert scores[0] == scores[2] == 0


def test_texts_without_a_telling_word_have_empty_rows() -> None:
    rows = TfIdf(VOCABULARY).rows([[], ["all", "all"], ["a"]])
    assert np.diff(rows.indptr).tolist() == [0, 0, 1]


def test_no_texts() -> None:
    assert TfIdf(VOCABULARY).rows([]).shape == (0, N_TERM_IDS)


def test_an_unknown_term_frequency_is_refused() -> None:
    with pytest.raises(ConfigError, match="raw, log"):
        TfIdf(VOCABULARY, tf="bm25")


@given(TOKENS, st.sampled_from(["raw", "log"]))
def test_rows_are_sorted_unit_rows(tokens: list[list[str]], tf: str) -> None:
    rows = TfIdf(VOCABULARY, tf).rows(tokens)
    assert rows.shape == (len(tokens), N_TERM_IDS)
    assert [array.dtype.name for array in (rows.data, rows.indices, rows.indptr)] == ["float32", "int32", "int32"]
    for i, text in enumerate(tokens):
        row = rows[i]
        assert np.all(np.diff(row.indices) > 0)
        assert np.all(row.data > 0)
        expected = 1.0 if set(text) - {"all"} else 0.0
        assert np.sqrt(np.sum(row.data.astype(float) ** 2)) == pytest.approx(expected, abs=1e-6)


@given(TOKENS, st.randoms(use_true_random=False), st.sampled_from(["raw", "log"]))
def test_the_order_of_words_does_not_matter(tokens: list[list[str]], random: object, tf: str) -> None:
    tfidf = TfIdf(VOCABULARY, tf)
    shuffled = [random.sample(text, len(text)) for text in tokens]  # type: ignore[attr-defined]
    first, second = tfidf.rows(tokens), tfidf.rows(shuffled)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.data, second.data)


@given(TOKENS)
def test_a_batch_equals_its_texts_one_by_one(tokens: list[list[str]]) -> None:
    tfidf = TfIdf(VOCABULARY)
    rows = tfidf.rows(tokens)
    for i, text in enumerate(tokens):
        assert as_dict(rows[i]) == as_dict(tfidf.rows([text]))


def test_field_rows_follow_the_fields_and_the_documents() -> None:
    tfidf, analyzer = TfIdf(VOCABULARY), make_analyzer(AnalyzerConfig())
    sources = [{"title": "a", "text": "b c"}, {"text": "a"}, {"title": "C", "text": ""}]
    counts = text_counts(VOCABULARY, analyzer, [TextView().texts(source) for source in sources], 2)
    title, text = map(tfidf.rows_of_counts, counts)
    assert [as_dict(title[i]) for i in range(3)] == [{1: 1.0}, {}, {3: 1.0}]
    assert [sorted(as_dict(text[i])) for i in range(3)] == [[2, 3], [1], []]
    assert [field.shape for field in text_counts(VOCABULARY, analyzer, [], 2)] == [(0, N_TERM_IDS)] * 2


@given(TOKENS, TOKENS, st.floats(0.1, 5.0), st.floats(0.1, 5.0))
def test_combine_adds_weighted_rows(
    first: list[list[str]], second: list[list[str]], weight_a: float, weight_b: float
) -> None:
    n, tfidf = min(len(first), len(second)), TfIdf(VOCABULARY)
    a, b = tfidf.rows(first[:n]), tfidf.rows(second[:n])
    combined = combine([a, b], [weight_a, weight_b])
    assert combined.dtype == np.float32
    for i in range(n):
        expected = dict.fromkeys([*a[i].indices.tolist(), *b[i].indices.tolist()], 0.0)
        for row, weight in ((as_dict(a[i]), weight_a), (as_dict(b[i]), weight_b)):
            for term, value in row.items():
                expected[term] += weight * value
        assert as_dict(combined[i]) == pytest.approx(expected, rel=1e-5)
        assert np.all(np.diff(combined[i].indices) > 0)


def test_combining_one_field_scales_it_and_leaves_it_alone() -> None:
    rows = TfIdf(VOCABULARY).rows([["a", "b"]])
    before = rows.data.copy()
    np.testing.assert_allclose(combine([rows], [3.0]).data, 3 * before)
    np.testing.assert_array_equal(rows.data, before)


def test_combining_different_numbers_of_rows_is_refused() -> None:
    tfidf = TfIdf(VOCABULARY)
    one, two = tfidf.rows([["a"]]), tfidf.rows([["a"], ["b"]])
    for rows, weights in (([one, two], [1.0, 1.0]), ([one], [1.0, 2.0]), ([], [])):
        with pytest.raises(ShapeMismatch):
            combine(rows, weights)


def test_unit_rows_have_length_one_or_nothing() -> None:
    rows = combine([TfIdf(VOCABULARY).rows([["a", "b"], [], ["c"]])], [2.5])
    assert [float(np.linalg.norm(unit_rows(rows)[i].data)) for i in range(3)] == pytest.approx([1.0, 0.0, 1.0])
