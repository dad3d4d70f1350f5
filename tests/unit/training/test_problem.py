"""Corpus and evidence as arrays: what is left out, how words are numbered, what is never a negative."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.errors import TrainingError
from reranker.kernels.rows import Rows
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.records import Pair
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import combine, inner_products
from reranker.text.tfidf import learned_rows
from reranker.text.view import TextView
from reranker.training.problem import (
    Problem,
    TwoRows,
    alias_table,
    csr_of,
    cut_to_keywords,
    in_blocks,
    query_set,
    two_rows,
    unusable_part,
)
from reranker.training.reading import DocumentSource, Listener, TrainingCorpus, read_corpus_once, vocabulary_of
from reranker.training.training_set import Preference, Preferences, TrainingSet, from_links, from_pairs, mix
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import corpus_of, problem_of, write_documents

DOCUMENTS = [
    {"id": "ash", "title": "ash tree", "text": "tall tree of hard wood"},
    {"id": "oak", "title": "oak tree", "text": "hard wood of slow growth"},
    {"id": "fire", "title": "garden fire", "text": "burn wood in a garden"},
    {"id": "pump", "title": "pump", "text": "moves water uphill"},
    {"id": "empty", "title": "", "text": ""},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "docs.jsonl", DOCUMENTS)


def read(path: Path, evidence: TrainingSet, max_words: int | None = None) -> TrainingCorpus:
    return corpus_of(path, evidence, max_words)


def asked_rows(corpus: TrainingCorpus) -> sp.csr_matrix:
    """Return the tf-idf rows of the documents that are queries, each as one text."""
    return corpus.tfidf.rows_of_counts(combine([field[corpus.query_documents] for field in corpus.counts], (1.0, 1.0)))


def matrix(rows: Rows, n_columns: int) -> sp.csr_matrix:
    return sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(rows.indptr) - 1, n_columns))


def test_unknown_ids_are_left_out_and_counted(path: Path) -> None:
    links = [("ash", "oak"), ("nowhere", "oak"), ("ash", "nowhere"), ("ash", "gone"), ("empty", "oak"), ("oak", "fire")]
    evidence = from_links(links)
    corpus = read(path, evidence)
    problem = problem_of(corpus, evidence)
    assert problem.dropped == {"unknown query id": 1, "unknown document id": 2, "query without a known word": 1}
    assert problem.tuples.document.tolist() == [corpus.row_of["oak"], corpus.row_of["fire"]]


def test_unknown_worse_documents_are_left_out(path: Path) -> None:
    evidence = from_pairs([Pair("wood", "oak", "gone"), Pair("wood", "oak", "pump"), Pair("wood", "ash", "gone")])
    corpus = read(path, evidence)
    tuples = problem_of(corpus, evidence).tuples
    assert tuples.worse_indptr.tolist() == [0, 1, 1]
    assert tuples.worse.tolist() == [corpus.row_of["pump"]]


def test_pairs_are_counted_by_what_was_done_with_them(path: Path) -> None:
    pairs = [("wood", "oak", "pump"), ("wood", "oak", "gone"), ("wood", "lost", "pump"), ("wood", "lost", "oak")]
    pairs += [("water", "pump", "oak"), ("water", "oak", "pump"), (" - ", "oak", "ash")]
    evidence = from_pairs([Pair(*pair) for pair in [*pairs, pairs[0]]])
    corpus = read(path, evidence)
    queries = query_set(corpus, [evidence], None)
    left_out = {part.reason: (part.count, part.samples) for part in unusable_part(corpus, queries, evidence)}
    assert left_out == {
        "an opposite pair has the same weight or more": (2, ("water",)),
        "query without a known word": (1, (" - ",)),
        "unknown document id": (2, ("lost",)),
        "unknown id of the worse document": (1, ("gone",)),
    }
    assert evidence.n_given == 7
    unknown = {part.reason: part.count for part in evidence.unknown_ids(corpus.row_of)}
    assert unknown == {"unknown document id": 2, "unknown id of the worse document": 1}


def test_weights_and_queries_of_pairs(path: Path) -> None:
    evidence = from_pairs([Pair("hard wood", "oak", "pump", 3.0), Pair("water", "pump", "oak", 0.5)])
    problem = problem_of(read(path, evidence), evidence)
    assert problem.tuples.query.tolist() == [0, 1]
    assert problem.tuples.weight.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(drawn(problem), [3 / 3.5, 0.5 / 3.5], rtol=1e-5)
    assert np.diff(problem.queries.indptr).tolist() == [2, 1]
    assert problem.n_document_queries == 0


def drawn(problem: Problem) -> np.ndarray:
    """Return the chance of each tuple, from its table."""
    _, _, _, _, _, keep, alias = problem.tuples
    n = len(problem.tuples.query)
    if not len(keep):
        return np.full(n, 1 / n)
    chances = keep.astype(np.float64) / n
    np.add.at(chances, alias, (1 - keep.astype(np.float64)) / n)
    return chances


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 1.0, 1.0],
        [1e-9, 1.0, 1e9],
        [5.0],
        [0.1] * 50 + [10.0],
        list(np.random.default_rng(1).pareto(1, 999) + 1e-3),
    ],
    ids=["equal", "far apart", "one", "one heavy", "many"],
)
def test_an_alias_table_draws_by_weight(weights: list[float]) -> None:
    values = np.array(weights)
    keep, alias = alias_table(values)
    if np.ptp(values) == 0:
        assert not len(keep) and not len(alias)
        return
    chances = keep.astype(np.float64)
    np.add.at(chances, alias, 1 - keep.astype(np.float64))
    assert keep.min() >= 0 and keep.max() <= 1
    np.testing.assert_allclose(chances / len(values), values / values.sum(), atol=1e-7)


def test_equal_weights_need_no_table_and_no_scale(path: Path) -> None:
    for weight in (1.0, 7.0):
        evidence = from_pairs([Pair("wood", "oak", "pump", weight), Pair("water", "pump", "oak", weight)])
        problem = problem_of(read(path, evidence), evidence)
        assert not len(problem.tuples.keep)
        assert problem.tuples.weight.tolist() == [1.0, 1.0]


def test_preferences_without_a_usable_weight_are_left_out(path: Path) -> None:
    weights = (1.0, 0.0, -1.0, np.nan, np.inf)
    evidence = TrainingSet(Preferences.of(Preference("wood", "oak", (), w) for w in weights), {"wood": "wood"})
    problem = problem_of(read(path, evidence), evidence)
    assert len(problem.tuples.query) == 1
    assert problem.dropped == {"a weight that is not finite and above 0": 4}


def test_links_beside_texts_have_their_own_rows(path: Path) -> None:
    # The id of a document and the text of a query may be the same word.
    asked = from_pairs([Pair("ash", "oak", "pump"), Pair("water", "pump", "oak")])
    evidence = mix((asked, 3.0), (from_links([("ash", "fire"), ("oak", "fire")]), 1.0))
    corpus = read(path, evidence)
    problem = problem_of(corpus, evidence)
    assert problem.n_document_queries == 2
    assert problem.tuples.query.tolist() == [2, 3, 0, 1]
    assert [corpus.ids[row] for row in problem.tuples.document] == ["oak", "pump", "fire", "fire"]
    np.testing.assert_allclose(drawn(problem), [3 / 8, 3 / 8, 1 / 8, 1 / 8], rtol=1e-6)
    known = [
        {corpus.ids[i] for i in problem.negatives.known[a:b]}
        for a, b in zip(problem.negatives.known_indptr, problem.negatives.known_indptr[1:], strict=False)
    ]
    assert known == [{"ash", "fire"}, {"oak", "fire"}, {"oak"}, {"pump"}]
    queries = matrix(problem.queries, problem.n_columns)
    np.testing.assert_allclose(queries[:2].todense(), asked_rows(corpus)[:, : problem.n_columns].todense())
    texts = query_set(corpus, [asked], None).rows.learned[:, : problem.n_columns]
    np.testing.assert_allclose(queries[2:].todense(), texts.todense())


@pytest.mark.parametrize("max_words", [1, 4, None])
def test_words_beyond_the_vocabulary_count_in_q_d_alone(path: Path, max_words: int | None) -> None:
    evidence = from_links([("ash", "oak"), ("fire", "ash"), ("pump", "fire")])
    corpus = read(path, evidence, max_words)
    problem = problem_of(corpus, evidence)
    n_words = len(corpus.tfidf.vocabulary)
    if max_words is not None:
        assert n_words == max_words
        assert problem.n_columns > n_words, "no hashed word"
    queries, documents = (matrix(rows, problem.n_columns) for rows in (problem.queries, problem.documents))
    full_queries, full_documents = asked_rows(corpus), corpus.learned_rows((1.0, 1.0))
    expected = inner_products(full_queries, full_documents)
    np.testing.assert_allclose((queries @ documents.T).todense(), expected, rtol=1e-5)
    # The ids of the vocabulary are as they were; the others follow without gaps.
    for rows, full in ((problem.queries, full_queries), (problem.documents, full_documents)):
        full.sort_indices()
        known = full.indices < n_words
        assert np.array_equal(rows.indices[known], full.indices[known])
        assert (rows.indices[~known] >= n_words).all()
        assert all(np.all(np.diff(rows.indices[a:b]) > 0) for a, b in zip(rows.indptr, rows.indptr[1:], strict=False))
    used = np.unique(np.concatenate([problem.queries.indices, problem.documents.indices]))
    assert used.max() == problem.n_columns - 1


@pytest.mark.parametrize("has_lexical", [False, True])
def test_rows_made_in_blocks_are_those_made_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_lexical: bool
) -> None:
    corpus = read(path, from_links([(one["id"], "oak") for one in DOCUMENTS if one["id"] != "oak"]))
    vocabulary = corpus.tfidf.vocabulary
    settings = LexicalSettings("bm25", (1.0, 0.5), (1.0, 0.0), b=(0.75, 0.5), mean_lengths=(2.0, 5.0))
    lexical = LexicalRows(settings, vocabulary.frequency_of, vocabulary.n_documents) if has_lexical else None

    def rows_of(block: slice) -> TwoRows:
        counts = [field[block] for field in corpus.counts]
        learned = learned_rows(corpus.tfidf, counts, (1.0, 2.0))
        return two_rows(learned, None if lexical is None else lexical.documents(counts))

    def both() -> tuple[TwoRows, TwoRows]:
        return in_blocks(5, rows_of), query_set(corpus, [], lexical).rows

    at_once = both()
    for block in (2, 4):
        monkeypatch.setattr("reranker.training.problem._BLOCK", block)
        for some, expected in zip(both(), at_once, strict=True):
            assert (some.lexical is some.learned) == (not has_lexical) == (expected.lexical is expected.learned)
            for a, b in zip(some, expected, strict=True):
                assert a.shape == b.shape
                assert all(np.array_equal(getattr(a, of), getattr(b, of)) for of in ("data", "indices", "indptr"))
    assert in_blocks(0, lambda block: rows_of(slice(0, 0))).learned.shape[0] == 0


def test_known_documents_and_the_query_itself_are_no_negatives(path: Path) -> None:
    evidence = from_links([("ash", "oak"), ("ash", "fire"), ("oak", "ash")])
    corpus = read(path, evidence)
    negatives = problem_of(corpus, evidence).negatives
    known = {
        query: negatives.known[negatives.known_indptr[row] : negatives.known_indptr[row + 1]].tolist()
        for query, row in corpus.query_row_of.items()
    }
    row = corpus.row_of
    assert known == {"ash": sorted([row["ash"], row["oak"], row["fire"]]), "oak": sorted([row["oak"], row["ash"]])}


def test_negatives_are_not_drawn_from_held_out_documents(path: Path) -> None:
    evidence = from_links([("ash", "oak")])
    corpus = read(path, evidence)
    pool = problem_of(corpus, evidence, held_out=["fire", "pump"]).negatives.pool
    assert [corpus.ids[row] for row in pool] == ["ash", "oak", "empty"]


def test_a_document_that_no_preference_names_is_no_negative_where_enough_are_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = from_links([("ash", "oak"), ("oak", "fire")])
    corpus = read(path, evidence)

    def pool(evidence: TrainingSet, *held_out: str) -> list[str]:
        problem = problem_of(corpus, evidence, held_out=held_out, known_negatives=True)
        return [corpus.ids[row] for row in problem.negatives.pool]

    assert pool(evidence) == list(corpus.ids)  # three are too few
    monkeypatch.setattr("reranker.training.problem.MIN_NEGATIVES", 3)
    assert pool(evidence) == ["ash", "oak", "fire"]
    assert pool(evidence, "fire") == ["ash", "oak", "pump", "empty"]
    assert pool(from_pairs([Pair("wood", "oak", "ash"), Pair("wood", "fire", "oak")])) == ["ash", "oak", "fire"]


def test_nothing_left_to_learn_from(path: Path) -> None:
    evidence = from_links([("a", "oak"), ("ash", "b"), ("empty", "oak")])
    corpus = read(path, evidence)
    with pytest.raises(TrainingError, match="no preference is left") as caught:
        problem_of(corpus, evidence)
    for reason in ("1 x unknown query id", "1 x unknown document id", "1 x query without a known word"):
        assert reason in str(caught.value)
    with pytest.raises(TrainingError, match="there are none"):
        problem_of(corpus, TrainingSet(Preferences.of(()), None))
    fine = from_links([("ash", "oak")])
    with pytest.raises(TrainingError, match="at least 2 are needed"):
        problem_of(read(path, fine), fine, held_out=["ash", "fire", "pump", "empty"])


def test_queries_without_any_text_leave_nothing(path: Path) -> None:
    evidence = TrainingSet(Preferences.of([Preference("q", "oak")]), {"q": " ... "}, {"q": {"oak": 1.0}})
    with pytest.raises(TrainingError, match="1 x query without a known word"):
        problem_of(read(path, evidence), evidence)


def test_a_file_without_words(tmp_path: Path) -> None:
    view, analyzer = TextView.parse(["body"]), make_analyzer(AnalyzerConfig())
    corpus = DocumentSource(write_documents(tmp_path / "docs.jsonl", [{"id": "ash", "body": "-"}]), view, analyzer)
    tokens = read_corpus_once(corpus, analyzer, Listener()).tokens
    with pytest.raises(TrainingError, match=r"no word of .*check the fields \(body\)"):
        vocabulary_of(corpus, tokens)


def test_keyword_queries_are_drawn_without_replacement(path: Path) -> None:
    corpus = read(path, from_links([("ash", "oak"), ("fire", "oak"), ("empty", "oak"), ("pump", "oak")]))
    queries = asked_rows(corpus)
    rows = cut_to_keywords(two_rows(queries, None), 3, seeded_rng()).learned
    assert np.diff(rows.indptr).tolist() == [3, 3, 0, 3] or np.diff(rows.indptr).max() == 3
    for number in range(rows.shape[0]):
        mine, full = rows[number], queries[number]
        assert set(mine.indices) <= set(full.indices)
        if mine.nnz:
            assert np.linalg.norm(mine.data) == pytest.approx(1, rel=1e-5)
            weight = dict(zip(full.indices.tolist(), full.data.tolist(), strict=True))
            ratio = mine.data / [weight[word] for word in mine.indices.tolist()]
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)  # they keep their tf-idf


def test_query_set_of_two_sides(path: Path) -> None:
    sides = [from_pairs([Pair("wood", "oak", "pump")]), from_pairs([Pair("water", "pump", "oak")])]
    queries = query_set(read(path, sides[0]), sides, None)
    assert dict(queries.row_of) == {"wood": 0, "water": 1}
    assert queries.rows.learned.shape[0] == 2


def test_columns_past_the_width_are_left_out() -> None:
    rows = Rows(np.array([0, 2, 2, 4]), np.array([1, 9, 0, 3], np.int32), np.array([1, 2, 3, 4], np.float32))
    assert csr_of(rows, 4).toarray().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [3, 0, 0, 4]]
