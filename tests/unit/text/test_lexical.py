"""The lexical part of the score: BM25 and tf-idf as inner products of rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.errors import ConfigError, ShapeMismatch
from reranker.lexical.bm25 import QUERY_TF, LexicalRows, LexicalSettings
from reranker.text.rows import inner_products
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder

TITLES = ["red shoes", "blue shoes", "", "green hat"]
TEXTS = ["red red leather", "blue blue blue suede soft", "red hat", "a green and green hat of felt"]


def counts_of(texts: list[str]) -> sp.csr_matrix:
    return count_rows(VOCABULARY, [text.split() for text in texts])


def _vocabulary() -> Vocabulary:
    builder = VocabularyBuilder()
    builder.add(f"{title} {text}".split() for title, text in zip(TITLES, TEXTS, strict=True))
    return builder.build()


VOCABULARY = _vocabulary()
FIELDS = [counts_of(TITLES), counts_of(TEXTS)]
MEANS = tuple(float(field.sum() / 4) for field in FIELDS)
BM25 = LexicalSettings("bm25", (3.0, 1.0), (0.5, 1.0), 1.5, (0.2, 0.7), MEANS)


def rows_of(settings: LexicalSettings) -> LexicalRows:
    return LexicalRows(settings, VOCABULARY.frequency_of, VOCABULARY.n_documents)


def bm25_by_hand(query: str, number: int) -> float:
    """Return BM25F of a query's words, by the formula; the query's length divided out."""
    tokens = (TITLES[number].split(), TEXTS[number].split())
    score, square = 0.0, 0.0
    for word in dict.fromkeys(query.split()):
        df = sum(word in f"{title} {text}".split() for title, text in zip(TITLES, TEXTS, strict=True))
        idf = math.log(1 + (4 - df + 0.5) / (df + 0.5)) if df else math.log(1 + 3.5 / 1.5)
        tf = 0.0
        for field, weight, b, mean in zip(tokens, (3.0, 1.0), (0.2, 0.7), MEANS, strict=True):
            tf += weight * field.count(word) / (1 - b + b * len(field) / mean)
        n = query.split().count(word)
        score += n * idf * 2.5 * tf / (1.5 + tf)
        square += (n * idf) ** 2
    return score / math.sqrt(square)


@pytest.mark.parametrize("query", ["red", "red red hat", "blue suede unknown"])
def test_bm25_is_the_inner_product_of_rows(query: str) -> None:
    rows = rows_of(BM25)
    scores = inner_products(rows.queries([counts_of([query])]), rows.documents(FIELDS))[0]
    assert scores == pytest.approx([bm25_by_hand(query, number) for number in range(4)], rel=1e-5)


def test_coverage_adds_what_part_of_a_fields_idf_the_query_holds() -> None:
    covering = replace(BM25, query_tf="once", coverage=(5.0, 2.0), factor=3.0)
    query = rows_of(covering).queries([counts_of(["red shoes unknown"])])
    without, covered = (
        inner_products(query, rows_of(settings).documents(FIELDS))[0]
        for settings in (replace(covering, coverage=()), covering)
    )
    idf = {df: math.log(1 + (4 - df + 0.5) / (df + 0.5)) for df in (1, 2)}
    length = math.hypot(idf[2], idf[2], idf[1])  # red and shoes stand in two documents, an unknown word counts as rare
    parts = [
        5 * 1 + 2 * idf[2] / (idf[2] + idf[1]),  # red shoes; red red leather
        5 * idf[2] / (idf[1] + idf[2]),  # blue shoes, blue being in one document; no word of the text
        2 * idf[2] / (2 * idf[2]),  # no title; red hat
        0,
    ]
    assert covered - without == pytest.approx([3 * part / length for part in parts], rel=1e-5)


def test_a_title_wholly_covered_outranks_a_longer_one() -> None:
    titles, texts = ["sort list", "sort list stable merge", "graph"], ["about it", "about it", "it"]
    counts = [counts_of(titles), counts_of(texts)]
    flat = replace(BM25, b=(0.0, 0.0))  # no length counts
    query = rows_of(flat).queries([counts_of(["how to sort a list"])])
    without, covered = (
        inner_products(query, rows_of(settings).documents(counts))[0]
        for settings in (flat, replace(flat, coverage=(1.0, 0.0)))
    )
    assert without[0] == without[1]
    assert covered[0] > covered[1] > covered[2] == 0


def test_coverage_reaches_fields_of_weight_0() -> None:
    settings = replace(BM25, field_weights=(0.0, 1.0), coverage=(1.0, 0.0))
    hits = inner_products(rows_of(settings).queries([counts_of(["shoes"])]), rows_of(settings).documents(FIELDS))[0]
    assert (hits > 0).tolist() == [True, True, False, False]


def test_tfidf_is_the_sum_of_unit_rows() -> None:
    rows = rows_of(LexicalSettings("tfidf", (2.0, 1.0), (1.0, 1.0)))
    document, query = rows.documents(FIELDS), rows.queries([counts_of(["red"])])
    assert inner_products(query, document)[0, 0] == pytest.approx(
        2 * math.log(2) / math.hypot(math.log(2), math.log(2))
        + (1 + math.log(2)) * math.log(2) / math.hypot((1 + math.log(2)) * math.log(2), math.log(4)),
        rel=1e-5,
    )


@pytest.mark.parametrize("query_tf", QUERY_TF)
@pytest.mark.parametrize("form", ["tfidf", "bm25"])
def test_squares_give_the_length_of_a_query_of_some_of_the_words(form: str, query_tf: str) -> None:
    settings = LexicalSettings(form, (1.0, 1.0), (0.0, 1.0), 1.2, (0.5, 0.5), MEANS, query_tf)
    rows = rows_of(settings)
    queries = rows.queries([counts_of(TEXTS)])
    sums = np.add.reduceat(rows.squares(queries), queries.indptr[:-1])
    assert sums == pytest.approx(np.ones(4), rel=1e-5)


def test_the_factor_scales_every_score_alike() -> None:
    doubled = LexicalSettings.from_json({**BM25.to_json(), "factor": 2.0})
    one, two = (rows_of(settings).documents(FIELDS) for settings in (BM25, doubled))
    assert two.data == pytest.approx(2 * one.data, rel=1e-6)


def test_a_word_in_every_document_is_left_out() -> None:
    builder = VocabularyBuilder()
    builder.add([["all", "red"], ["all", "blue"]])
    vocabulary = builder.build()
    counts = count_rows(vocabulary, [["all", "red"], ["all", "blue"]])
    rows = LexicalRows(
        LexicalSettings("bm25", (1.0,), (1.0,), 1.2, (0.75,), (2.0,)), vocabulary.frequency_of, vocabulary.n_documents
    )
    assert np.diff(rows.documents([counts]).indptr).tolist() == [1, 1]
    assert np.diff(rows.queries([counts]).indptr).tolist() == [1, 1]


def test_settings_survive_json() -> None:
    covering = replace(BM25, coverage=(1.0, 0.0))
    assert [LexicalSettings.from_json(each.to_json()) for each in (BM25, covering)] == [BM25, covering]
    assert "coverage" not in BM25.to_json()  # encoders without it keep the ids they had


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "bm26"}, "choose one of tfidf, bm25"),
        ({"query_tf": "twice"}, "choose one of raw"),
        ({"field_weights": (1.0,)}, "query_weights has 2 values for 1 fields"),
        ({"field_weights": (0.0, 0.0)}, "needs a weight above 0"),
        ({"b": (0.5, 1.5)}, "between 0 and 1"),
        ({"k1": 0.0}, "k1 is 0.0: it must be finite and above 0"),
        ({"factor": math.inf}, "factor is inf"),
        ({"coverage": (1.0,)}, "coverage has 1 values for 2 fields"),
        ({"coverage": (1.0, -1.0)}, "coverage is .* must be finite and at least 0"),
        ({"mean_lengths": (math.nan, 1.0)}, "must be finite and at least 0"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LexicalSettings.from_json({**BM25.to_json(), **change})


def test_counts_of_other_fields_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="counts of 1 fields for 2 weights"):
        rows_of(BM25).documents(FIELDS[:1])
