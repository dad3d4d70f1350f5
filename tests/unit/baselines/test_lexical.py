"""TF-IDF, BM25 and LSI against slow formulas, on a corpus small enough to work out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS
from reranker.baselines.fitted import LsiBaseline
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation import Links
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import combine, compact_columns, stack_rows, unit_rows
from reranker.text.tfidf import TfIdf, count_rows, field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from tests.seeds import seeded_rng
from tests.unit.small_models import DOCUMENTS

TFIDF = LexicalSettings("tfidf", (2.0, 1.0), (0.5, 1.0))
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
        scores.append(corpus.scorer(corpus.document_queries(ALL), ALL, TFIDF).block(0, len(ALL)))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_tfidf_equals_the_text_package() -> None:
    """The same rows as the encoder's where all words are listed: a second way to the same numbers."""
    names = vocabulary()
    fields = [TfIdf(names).rows_of_counts(counts) for counts in field_counts(names, VIEW, ANALYZER, DOCUMENTS)]
    d, q = combine(fields, [2.0, 1.0]), unit_rows(combine(fields, [0.5, 1.0]))
    corpus = LexicalCorpus(field_counts(names, VIEW, ANALYZER, DOCUMENTS))
    scorer = corpus.scorer(corpus.document_queries(ALL), ALL, TFIDF)
    n = len(names)
    dense_d, dense_q = (
        sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(ALL), n)).toarray() for rows in (d, q)
    )
    assert scorer.block(0, len(ALL)) == pytest.approx(dense_q @ dense_d.T, abs=1e-6)


def test_a_pool_is_a_choice_of_columns() -> None:
    corpus, pool = corpus_of(), np.array([4, 0, 2])
    queries = corpus.document_queries(ALL)
    bm25 = LexicalSettings("bm25", (1.0, 1.0), (1.0, 1.0), b=(0.75, 0.75), mean_lengths=(2.0, 9.0))
    for settings in (TFIDF, bm25):
        every = corpus.scorer(queries, ALL, settings).block(0, 6)
        assert corpus.scorer(queries, pool, settings).block(0, 6) == pytest.approx(every[:, pool], abs=1e-6)


def remembering() -> tuple[LexicalCorpus, Vocabulary]:
    """Two documents of one word each, and three queries that were relevant: two of equal words to both documents."""
    builder = VocabularyBuilder()
    builder.add([["tree"], ["iron"]])
    names = builder.build()
    texts = LexicalCorpus([count_rows(names, [["tree"], ["iron"]])])
    relevant = Links.of([("a", "0"), ("a", "1"), ("b", "0"), ("b", "1"), ("c", "1"), ("c", "gone")])
    weights = np.array([1.0, 0.5, 3.0, 0.0, 1.0, 1.0])
    words = {"a": ["oak", "wood"], "b": ["oak", "wood"], "c": ["iron", "rust", "rust", "rust"]}
    remembered = RememberedQueries.of(
        relevant, weights, {"0": 0, "1": 1}, lambda ids: count_rows(names, [words[id_] for id_ in ids])
    )
    return texts.remembering(remembered, seeded_rng()), names


def words_remembered(corpus: LexicalCorpus, names: Vocabulary) -> list[dict[str, float]]:
    memory = corpus.fields[-1].toarray()
    words = {word: np.searchsorted(corpus.columns, names.ids([word])[0]) for word in ("oak", "wood", "iron", "rust")}
    return [{word: round(float(row[place]), 4) for word, place in words.items() if row[place]} for row in memory]


def test_documents_remember_the_queries_that_they_are_relevant_to() -> None:
    """By hand: a pair adds its weight, at most 1, divided by the root of the query's number of words."""
    corpus, names = remembering()
    of_a_pair = round(1 / np.sqrt(2), 4)
    both = round(2 / np.sqrt(2), 4)
    assert words_remembered(corpus, names) == [
        {"oak": both, "wood": both},
        {"oak": round(0.5 / np.sqrt(2), 4), "wood": round(0.5 / np.sqrt(2), 4), "iron": 0.5, "rust": 1.5},
    ]
    assert corpus.mean_lengths == pytest.approx((1.0, (2 * np.sqrt(2) + np.sqrt(0.5) + 2) / 2))
    assert corpus.main_field == 0
    # A word of both texts or memories stands in two documents; a new one counts as standing in one text besides.
    frequency = dict(zip(corpus.columns.tolist(), corpus.document_frequency.tolist(), strict=True))
    assert [frequency[int(names.ids([word])[0])] for word in ("tree", "iron", "oak", "rust")] == [1, 1, 3, 2]
    assert [corpus.texts.document_frequency.tolist(), len(corpus.texts.fields)] == [[1] * 5, 1]
    # Queries of equal words share a fold, and whoever asks as one of it is not remembered.
    assert corpus.fold_of["a"] == corpus.fold_of["b"] != corpus.fold_of["c"]
    without_c = corpus.without[corpus.fold_of["c"]]
    assert words_remembered(without_c, names)[0] == {"oak": both, "wood": both}
    assert words_remembered(without_c, names)[1].keys() == {"oak", "wood"}
    assert words_remembered(corpus.without[corpus.fold_of["a"]], names) == [{}, {"iron": 0.5, "rust": 1.5}]
    assert of_a_pair == words_remembered(corpus, names)[0]["oak"] / 2


def random_corpus(n: int = 60, m: int = 40) -> LexicalCorpus:
    rng = seeded_rng()
    return LexicalCorpus([sp.csr_matrix(rng.poisson(rate, size=(n, m)).astype(np.float32)) for rate in (0.1, 0.5)])


def test_lsi_equals_the_dense_decomposition() -> None:
    corpus, every = random_corpus(), np.arange(60)
    lsi, rows, queries = (
        LsiBaseline(corpus, TFIDF, 5, seeded_rng(1)),
        corpus.rows(TFIDF),
        corpus.document_queries(every),
    )
    d, q = (compact.toarray() for compact in compact_columns(rows.documents(corpus.fields), rows.queries(queries)))
    unit = d / np.linalg.norm(d, axis=1, keepdims=True)
    words = np.linalg.svd(unit)[2][:5].T
    pd, pq = d @ words, q @ words
    cosine = (pq / np.linalg.norm(pq, axis=1, keepdims=True)) @ (pd / np.linalg.norm(pd, axis=1, keepdims=True)).T
    assert lsi.scorer(queries, every, 1.0).block(0, 60) == pytest.approx(cosine, abs=1e-3)


def test_lsi_at_alpha_0_is_tfidf_and_mixes_linearly() -> None:
    """Identities of spec 5.11."""
    corpus, every = random_corpus(), np.arange(60)
    queries, lsi = corpus.document_queries(every), LsiBaseline(corpus, TFIDF, 4, seeded_rng(1))
    nothing, mixed, alone = (lsi.scorer(queries, every, alpha).block(0, 60) for alpha in (0.0, 0.3, 1.0))
    assert nothing == pytest.approx(corpus.scorer(queries, every, TFIDF).block(0, 60), abs=1e-6)
    assert mixed == pytest.approx(0.3 * alone + 0.7 * nothing, abs=1e-5)


def test_lsi_is_the_same_for_the_same_seed() -> None:
    corpus = random_corpus()
    first, second = (LsiBaseline(corpus, TFIDF, 4, np.random.default_rng(3)).word_vectors for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("n_dimensions", [0, 40, 1000])
def test_dimensions_that_cannot_be_had(n_dimensions: int) -> None:
    with pytest.raises(ConfigError, match=r"allows 1 to \d+ dimensions"):
        LsiBaseline(random_corpus(), TFIDF, n_dimensions, seeded_rng())


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(InputError, match="at least one document with a word"):
        LexicalCorpus([sp.csr_matrix(np.zeros((3, 4), dtype=np.float32))])
    with pytest.raises(ShapeMismatch, match="one row per document"):
        LexicalCorpus([sp.csr_matrix(np.ones((n, 4), dtype=np.float32)) for n in (2, 3)])


def test_small_helpers() -> None:
    a = sp.csr_matrix(np.array([[1, 0], [0, 2]], dtype=np.float32))
    assert stack_rows([a, a]).toarray().tolist() == [[1, 0], [0, 2], [1, 0], [0, 2]]
    assert stack_rows([]).shape == (0, N_TERM_IDS)
