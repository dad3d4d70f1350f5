"""TF-IDF, BM25 and LSI against slow formulas, on a corpus small enough to work out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS
from reranker.baselines.lexical import (
    QUERY_TF,
    Bm25Baseline,
    Bm25Settings,
    LexicalCorpus,
    LsiBaseline,
    LsiSettings,
    Rows,
    TfIdfBaseline,
    TfIdfSettings,
    weighted_sum,
)
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation.ranking import InnerProducts
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import (
    TfIdf,
    Vocabulary,
    VocabularyBuilder,
    combine,
    count_rows,
    field_counts,
    stack_rows,
    unit_rows,
)
from reranker.text.view import TextView
from tests.seeds import seeded_rng
from tests.unit.small_models import DOCUMENTS

VIEW = TextView.parse(["title^2", "text"])
ANALYZER = make_analyzer(AnalyzerConfig())
ALL = np.arange(len(DOCUMENTS))


def vocabulary(max_words: int | None = None) -> Vocabulary:
    builder = VocabularyBuilder()
    builder.add(ANALYZER.tokens([f"{one['title']} {one['text']}" for one in DOCUMENTS]))
    return builder.build(max_words)


def corpus_of(max_words: int | None = None) -> LexicalCorpus:
    return LexicalCorpus(field_counts(vocabulary(max_words), VIEW, ANALYZER, DOCUMENTS))


def words_of(text: str) -> Counter[str]:
    return Counter(ANALYZER.tokens([text])[0])


def document_frequency() -> Counter[str]:
    return Counter(word for one in DOCUMENTS for word in {**words_of(one["title"]), **words_of(one["text"])})


def test_counts_are_those_of_the_texts() -> None:
    names = vocabulary(5)
    rows = count_rows(names, [["wood", "tree", "wood"], [], ["P4711x-never-seen"]])
    assert rows.shape == (3, N_TERM_IDS)
    assert np.diff(rows.indptr).tolist() == [2, 0, 1]
    assert dict(zip(rows[0].indices.tolist(), rows[0].data.tolist(), strict=True)) == {
        int(names.ids(["wood"])[0]): 2.0,
        int(names.ids(["tree"])[0]): 1.0,
    }
    assert rows.indices[-1] == names.ids(["P4711x-never-seen"])[0]


def test_the_number_of_listed_words_changes_no_baseline() -> None:
    """Baselines count every word, also those that the model's vocabulary leaves out."""
    scores = []
    for max_words in (None, 3):
        corpus = corpus_of(max_words)
        queries, settings = corpus.document_queries(ALL), TfIdfSettings((2.0, 1.0), (0.5, 1.0))
        scores.append(TfIdfBaseline(corpus).scorer(queries, ALL, settings).block(0, len(ALL)))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_tfidf_equals_the_text_package() -> None:
    """The same rows as the encoder's where all words are listed: a second way to the same numbers."""
    names = vocabulary()
    fields = TfIdf(names, "log").rows_of_texts([VIEW.texts(one) for one in DOCUMENTS], 2, ANALYZER)
    d, q = combine(fields, [2.0, 1.0]), unit_rows(combine(fields, [0.5, 1.0]))
    corpus = LexicalCorpus(field_counts(names, VIEW, ANALYZER, DOCUMENTS))
    scorer = TfIdfBaseline(corpus).scorer(corpus.document_queries(ALL), ALL, TfIdfSettings((2.0, 1.0), (0.5, 1.0)))
    n = len(names)
    dense_d, dense_q = (
        sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(ALL), n)).toarray() for rows in (d, q)
    )
    assert scorer.block(0, len(ALL)) == pytest.approx(dense_q @ dense_d.T, abs=1e-6)


@pytest.mark.parametrize("query_tf", QUERY_TF)
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 0.5), (8.0, 0.0)])
def test_bm25_by_the_formula(query_tf: str, k1: float, b: float) -> None:
    weights, n, df = (3.0, 1.0), len(DOCUMENTS), document_frequency()
    text = "grey wood wood pump unheard-of"
    documents = [
        Counter({w: weights[0] * words_of(one["title"])[w] + weights[1] * words_of(one["text"])[w]
                 for w in {**words_of(one["title"]), **words_of(one["text"])}})
        for one in DOCUMENTS
    ]  # fmt: skip
    mean = sum(sum(document.values()) for document in documents) / n
    qtf: dict[str, Callable[[float], float]] = {
        "raw": float,
        "log": lambda tf: math.log2(1 + tf),
        "once": lambda _: 1.0,
    }
    expected = []
    for document in documents:
        length = sum(document.values())
        total = 0.0
        for word, tf in words_of(text).items():
            if document[word]:
                idf = math.log(1 + (n - df[word] + 0.5) / (df[word] + 0.5))
                norm = k1 * (1 - b + b * length / mean)
                total += qtf[query_tf](tf) * idf * document[word] * (k1 + 1) / (document[word] + norm)
        expected.append(total)
    names = vocabulary(4)
    corpus = LexicalCorpus(field_counts(names, VIEW, ANALYZER, DOCUMENTS))
    queries = corpus.text_queries(count_rows(names, ANALYZER.tokens([text])))
    scorer = Bm25Baseline(corpus).scorer(queries, ALL, Bm25Settings(weights, (1.0, 1.0), k1, b, query_tf))
    assert scorer.block(0, 1)[0] == pytest.approx(expected, rel=1e-5)


def test_a_pool_is_a_choice_of_columns() -> None:
    corpus, pool = corpus_of(), np.array([4, 0, 2])
    queries = corpus.document_queries(ALL)
    scorers: list[Callable[[Rows], InnerProducts]] = [
        lambda rows: TfIdfBaseline(corpus).scorer(queries, rows, TfIdfSettings((1.0, 1.0), (1.0, 1.0))),
        lambda rows: Bm25Baseline(corpus).scorer(queries, rows, Bm25Settings((1.0, 1.0), (1.0, 1.0))),
    ]
    for scorer in scorers:
        assert scorer(pool).block(0, 6) == pytest.approx(scorer(ALL).block(0, 6)[:, pool], abs=1e-6)


def random_corpus(n: int = 60, m: int = 40) -> LexicalCorpus:
    rng = seeded_rng()
    return LexicalCorpus([sp.csr_matrix(rng.poisson(rate, size=(n, m)).astype(np.float32)) for rate in (0.1, 0.5)])


def test_lsi_equals_the_dense_decomposition() -> None:
    corpus = random_corpus()
    tfidf, weights, rows = TfIdfBaseline(corpus), TfIdfSettings((2.0, 1.0), (0.5, 1.0)), np.arange(60)
    lsi = LsiBaseline(tfidf, weights.document_weights, 5, seeded_rng(1))
    d, q = tfidf.document_rows(rows, (2.0, 1.0)).toarray(), tfidf.query_rows(corpus.document_queries(rows), (0.5, 1.0))
    unit = d / np.linalg.norm(d, axis=1, keepdims=True)
    words = np.linalg.svd(unit)[2][:5].T
    pd, pq = d @ words, q.toarray() @ words
    cosine = (pq / np.linalg.norm(pq, axis=1, keepdims=True)) @ (pd / np.linalg.norm(pd, axis=1, keepdims=True)).T
    found = lsi.scorer(corpus.document_queries(rows), rows, LsiSettings(weights, 1.0)).block(0, 60)
    assert found == pytest.approx(cosine, abs=1e-3)


def test_lsi_at_alpha_0_is_tfidf_and_mixes_linearly() -> None:
    """Identities of spec 5.11."""
    corpus, weights, rows = random_corpus(), TfIdfSettings((2.0, 1.0), (0.5, 1.0)), np.arange(60)
    tfidf, queries = TfIdfBaseline(corpus), corpus.document_queries(rows)
    lsi = LsiBaseline(tfidf, (2.0, 1.0), 4, seeded_rng(1))
    nothing, mixed, alone = (
        lsi.scorer(queries, rows, LsiSettings(weights, alpha)).block(0, 60) for alpha in (0.0, 0.3, 1.0)
    )
    assert nothing == pytest.approx(tfidf.scorer(queries, rows, weights).block(0, 60), abs=1e-6)
    assert mixed == pytest.approx(0.3 * alone + 0.7 * nothing, abs=1e-5)


def test_lsi_is_the_same_for_the_same_seed() -> None:
    tfidf = TfIdfBaseline(random_corpus())
    first, second = (LsiBaseline(tfidf, (1.0, 1.0), 4, np.random.default_rng(3)).word_vectors for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("n_dimensions", [0, 40, 1000])
def test_dimensions_that_cannot_be_had(n_dimensions: int) -> None:
    with pytest.raises(ConfigError, match=r"allows 1 to \d+ dimensions"):
        LsiBaseline(TfIdfBaseline(random_corpus()), (1.0, 1.0), n_dimensions, seeded_rng())


def test_settings_out_of_range_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"k1": -1.0}, {"b": 1.5}, {"k1": float("nan")}, {"query_tf": "sometimes"}]
    for change in bad:
        with pytest.raises(ConfigError):
            Bm25Settings((1.0,), (1.0,), **change)
    with pytest.raises(ConfigError, match="log"):
        TfIdfBaseline(random_corpus(), "cubed")


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(InputError, match="at least one document with a word"):
        LexicalCorpus([sp.csr_matrix(np.zeros((3, 4), dtype=np.float32))])
    with pytest.raises(ShapeMismatch, match="one row a document"):
        LexicalCorpus([sp.csr_matrix(np.ones((n, 4), dtype=np.float32)) for n in (2, 3)])


def test_small_helpers() -> None:
    a = sp.csr_matrix(np.array([[1, 0], [0, 2]], dtype=np.float32))
    assert stack_rows([a, a]).toarray().tolist() == [[1, 0], [0, 2], [1, 0], [0, 2]]
    assert stack_rows([]).shape == (0, N_TERM_IDS)
    assert weighted_sum([a, a], [1.0, -1.0]).nnz == 0
    assert weighted_sum([a, a], [0.0, 0.0]).nnz == 0
    with pytest.raises(ShapeMismatch, match="1 weights for 2 fields"):
        weighted_sum([a, a], [1.0])
