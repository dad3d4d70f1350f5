"""Retrieval systems and tasks: corpora, studies, every system on a small corpus, claims and tables."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from papers import registry, retrieval_systems
from papers.corpora import PaperCorpus, read_paper_corpus
from papers.measures import COLUMNS, links_loss, links_measure
from papers.methods.lexical import fit_okapi
from papers.methods.projection import Projection
from papers.methods.projections import fit_lsa
from papers.methods.rows import idf_of, tfidf_rows
from papers.methods.word_pairs import Bilinear, Mix, Polynomial
from papers.plain_sgd import PlainShape, fit_plain
from papers.registry import Budget, FitInput, Fitted, TaskRequest
from papers.results import Claim, Results, orderings
from papers.retrieval_studies import ANCHORS, Variant, retrieval_study, reversed_share, with_anchors
from papers.retrieval_systems import AnchorTexts, PriorMix, n_frequent_words, weighted_anchors
from papers.runner import run_ranking
from papers.study import Study, StudyTrial, Texts
from reranker.arrays import Float32
from reranker.errors import ConfigError, InputError
from reranker.models.scorers import Scorer
from tests.papers.corpus import N_DOCUMENTS, write_corpus

TINY = Budget(n_dims=4, n_steps=2_000, every=1_000, patience=2, n_iterations=3, rates=(0.1,), n_slots=3_000, grid=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PaperCorpus:
    return read_paper_corpus(write_corpus(tmp_path_factory.mktemp("corpus") / "made"), seed=0)


@pytest.fixture(scope="module")
def study_of_all(corpus: PaperCorpus) -> Study:
    return retrieval_study(corpus, Variant("all", bigrams=True, anchors=True, small=True))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def results(study_of_all: Study, out: Path) -> Results:
    """Every retrieval system on one study."""
    systems, request = retrieval_systems.SYSTEMS, TaskRequest(Path("made"), out)
    return run_ranking("T1a", [study_of_all], systems, links_loss, links_measure, request, TINY, lambda *_: None)


def test_texts_titles_and_links_are_read(corpus: PaperCorpus) -> None:
    assert len(corpus.ids) == N_DOCUMENTS and corpus.documents_are_queries
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (200, 40, 60)
    title = corpus.plain[7][0]
    assert corpus.documents[7][:3] == [title] * 3 and corpus.documents[7][3:] == corpus.plain[7][1:]


def test_lines_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "made")
    with gzip.open(folder / "docs.jsonl.gz", "at", encoding="utf-8") as file:
        file.write("{broken\n")
    with (folder / "links_train.tsv").open("a", encoding="utf-8") as file:
        file.write("one column\nd001\tnowhere\nd001\td001\n")
    corpus = read_paper_corpus(folder, seed=0)
    assert len(corpus.train) == 200, "links to nowhere and to themselves teach nothing"
    assert [note.split(":")[0] for note in corpus.notes] == ["docs.jsonl.gz", "links_train.tsv"]


def test_links_of_one_file_are_split_by_the_seed(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "made")
    names = [folder / f"links_{part}.tsv" for part in ("train", "valid", "test")]
    (folder / "links.tsv").write_text("".join(name.read_text() for name in names))
    for name in names:
        name.unlink()
    first, again, other = (read_paper_corpus(folder, seed) for seed in (0, 0, 1))
    assert [len(part) for part in (first.train, first.valid, first.test)] == [210, 30, 60]
    assert first.test == again.test != other.test
    assert not set(first.train) & set(first.test)
    (folder / "links.tsv").rename(folder / "links_en.tsv")
    assert read_paper_corpus(folder, 0).test == first.test


def test_queries_with_judgements_are_split_by_query(tmp_path: Path) -> None:
    folder = _with_queries(tmp_path)
    corpus = read_paper_corpus(folder, seed=0)
    used = [{query for query, _ in part} for part in (corpus.train, corpus.valid, corpus.test)]
    assert [len(one) for one in used] == [7, 1, 2] and not used[0] & used[2]
    study = retrieval_study(corpus, Variant("q"))
    assert set(study.own) == {-1} and study.links is None
    assert len(study.test.queries) == 2


def _with_queries(tmp_path: Path) -> Path:
    folder = write_corpus(tmp_path / "made")
    for part in ("train", "valid", "test"):
        (folder / f"links_{part}.tsv").unlink()
    queries = "".join(f"q{number}\tc{number % 6}w1 c{number % 6}w2\n" for number in range(10))
    (folder / "queries.tsv").write_text(queries)
    judged = "".join(f"q{number}\td{number:03d}\t1\nq{number}\td{number + 1:03d}\t0\n" for number in range(10))
    (folder / "qrels.tsv").write_text(judged)
    return folder


def test_a_folder_that_is_no_corpus_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder.*\n.*docs\.jsonl"):
        read_paper_corpus(tmp_path / "none", seed=0)
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "b"}\n')
    with pytest.raises(InputError, match=r"links_train\.tsv"):
        read_paper_corpus(tmp_path, seed=0)
    (tmp_path / "links.tsv").write_text("x\ty\n")
    with pytest.raises(InputError, match="no training and no validation and no test pair"):
        read_paper_corpus(tmp_path, seed=0)


def test_T1a_studies_keep_test_links_out_of_training_and_of_negatives(corpus: PaperCorpus) -> None:
    study = retrieval_study(corpus, Variant("T1a"))
    row = {one: place for place, one in enumerate(corpus.ids)}
    assert study.relevant.nnz == 200 and study.known is not None and study.known.nnz == 300
    source, target = corpus.test[0]
    assert study.relevant[row[source], row[target]] == 0 and study.known[row[source], row[target]] == 1
    task = study.test.task
    place = task.query_ids.index(source)
    assert task.grades[place, task.document_ids.index(target)] == 1
    assert task.excluded[place, task.document_ids.index(source)], "a text does not rank itself"
    train = next(pair for pair in corpus.train if pair[0] == source)
    assert task.excluded[place, task.document_ids.index(train[1])]


def test_T1a_T1b_vocabularies_are_limited_or_full(corpus: PaperCorpus) -> None:
    assert len(retrieval_study(corpus, Variant("x", n_words=30)).documents.words) == 30
    words = {word for text in corpus.documents for word in text}
    assert len(retrieval_study(corpus, Variant("x", n_words=None)).documents.words) == len(words)


def test_T2_trains_on_documents_that_the_test_never_ranks(corpus: PaperCorpus) -> None:
    study = retrieval_study(corpus, Variant("documents", disjoint=True))
    assert study.train_documents is not None
    seen, pool = set(study.train_documents.tolist()), set(study.test.pool.tolist())
    assert not seen & pool and len(seen) + len(pool) == N_DOCUMENTS
    data = study.plain_data()
    assert data.d_rows.shape[0] == len(seen), "negatives are documents of training, too"
    assert data.relevant.nnz == study.relevant.nnz
    queries, documents = data.relevant.nonzero()
    assert {int(study.train_documents[one]) for one in documents} | {int(one) for one in queries} <= seen
    for query in np.flatnonzero(data.own >= 0):
        assert study.train_documents[data.own[query]] == query
    only_outside = {word for row in pool for word in corpus.documents[row]}
    only_outside -= {word for row in seen for word in corpus.documents[row]}
    assert not only_outside & set(study.documents.words)


@pytest.mark.parametrize("k", [5, 10, 20])
def test_T3a_and_T3b_and_T3c_queries_hold_k_words_of_their_document(corpus: PaperCorpus, k: int) -> None:
    study = retrieval_study(corpus, Variant("T3", keywords=k))
    whole = retrieval_study(corpus, Variant("T1"))
    assert study.keywords == k and study.plain_data().keywords == k
    for place, name in enumerate(study.test.task.query_ids):
        row = study.test.queries.rows[place]
        full = whole.queries.rows[corpus.ids.index(name)]
        assert row.nnz == min(k, full.nnz) and set(row.indices) <= set(full.indices)
        assert np.linalg.norm(row.data) == pytest.approx(1.0)
        assert set(study.test.queries.counts[place].indices) == set(row.indices)
    again = retrieval_study(corpus, Variant("T3", keywords=k))
    assert abs(again.test.queries.rows - study.test.queries.rows).sum() == 0


def test_T3d_keywords_are_of_the_full_vocabulary(corpus: PaperCorpus) -> None:
    full = retrieval_study(corpus, Variant("T3d", n_words=None, keywords=10))
    limited = retrieval_study(corpus, Variant("T3b", n_words=20, keywords=10))
    assert len(limited.documents.words) == 20 < len(full.documents.words)
    assert np.diff(full.test.queries.rows.indptr).max() == 10
    assert full.test.queries.rows.indices.max() >= 20 > limited.test.queries.rows.indices.max()


def test_T9_larger_shares_hold_the_smaller_ones_and_the_test_stays(corpus: PaperCorpus) -> None:
    studies = [retrieval_study(corpus, Variant("T9", share=share)) for share in (0.1, 0.3, 1.0)]
    assert [study.relevant.nnz for study in studies] == [20, 60, 200]
    assert (studies[1].relevant - studies[0].relevant).min() == 0
    assert {study.test.task.query_ids for study in studies} == {studies[0].test.task.query_ids}
    assert len({study.test.tuples.negative.tobytes() for study in studies}) == 1


def test_reversed_links_are_counted(corpus: PaperCorpus) -> None:
    by_hand = sum((target, source) in set(corpus.train) for source, target in corpus.test)
    assert reversed_share(corpus) == by_hand / 60


@pytest.mark.slow
def test_every_retrieval_system_has_a_row_of_its_own_ranking(results: Results, study_of_all: Study, out: Path) -> None:
    assert len(results.titles) == 48 and not results.failures
    task = study_of_all.test.task
    relevant = {
        query: {task.document_ids[column] for column in task.grades[row].indices}
        for row, query in enumerate(task.query_ids)
    }
    for name in results.titles:
        with gzip.open(out / "T1a" / "all" / f"{name}.run.gz", "rt", encoding="utf-8") as file:
            ranked: dict[str, list[str]] = {}
            for line in file:
                query, _, document, rank, *_ = line.split()
                ranked.setdefault(query, []).append(document)
                assert int(rank) in (len(ranked[query]) - 1, len(ranked[query]))
        expected = [average_precision(ranked[query], relevant[query]) for query in task.query_ids]
        np.testing.assert_allclose(results.pooled(name, "AP"), expected, rtol=1e-6, err_msg=name)


def average_precision(ranked: list[str], relevant: set[str]) -> float:
    """Return the mean of the precision at the ranks of the relevant documents."""
    ranks = [rank for rank, document in enumerate(ranked, 1) if document in relevant]
    return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(relevant)


LEARNED = (
    "margin-ranking-perceptron",
    "zero-diagonal",
    "utu-plus-i",
    "utv-plus-i",
    "utv",
    "restricted-utv-plus-i",
    "hash-kernels-3m",
    "hash-kernels-diagonal-3m",
    "hash-kernels-joint-3m",
    "cfh-1",
    "cfh-5",
    "cfh-5-printed",
    "cfh-1-grams",
    "cfh-1-2-grams",
    "psi-3",
    "psi-3-separate",
    "psi-4",
    "psi-k",
    "psi-3-query",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_learned_systems_rank_better_than_chance(results: Results, name: str) -> None:
    assert results.mean(name, "rank loss") < 40.0


def test_systems_that_join_words_of_a_cluster_beat_tf_idf(results: Results) -> None:
    reference = results.mean("tf-idf", "rank loss")
    for name in ("utu-plus-i", "margin-ranking-perceptron", "lsi-tf-idf"):
        assert results.mean(name, "rank loss") < reference, name


def test_B01_B18_M01_are_one_order(results: Results) -> None:
    first, second = (results.pooled(name, "AP") for name in ("tf-idf", "vector-space"))
    assert np.allclose(first, second)


def test_B17_and_finds_only_documents_with_all_words_and_or_those_with_any(
    results: Results, study_of_all: Study
) -> None:
    trial = study_of_all.test
    held = [
        {row: set(texts.counts[row].indices.tolist()) for row in range(len(texts))}
        for texts in (trial.queries, study_of_all.documents.take(trial.pool))
    ]
    for name in ("boolean-and", "boolean-or"):
        scores = np.array(
            [
                [
                    query <= document if name == "boolean-and" else bool(query & document)
                    for document in held[1].values()
                ]
                for query in held[0].values()
            ]
        )
        expected = links_measure(study_of_all, trial, Fitted(_Scores(scores.astype(np.float32))))
        np.testing.assert_allclose(results.pooled(name, "AP"), expected["AP"], err_msg=name)
    assert results.mean("boolean-or", "rank loss") < 50 == results.mean("boolean-and", "rank loss")


class _Scores:
    """The given scores of every query of a trial with every document of its pool."""

    def __init__(self, scores: Float32) -> None:
        self.scores = scores

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        assert (q_rows.shape[0], d_rows.shape[0]) == self.scores.shape
        return self.scores

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        raise AssertionError("a whole trial is scored at once")


def test_B21_the_prior_is_added_by_its_weight(corpus: PaperCorpus) -> None:
    study = retrieval_study(corpus, Variant("x"))
    queries, documents = study.queries.view("prior")[:3], study.documents.view("prior")[:5]
    plain = Bilinear.lexical().score_matrix(study.queries.counts[:3], study.documents.counts[:5])
    prior = documents[:, -1].toarray().ravel()
    assert (prior > 0).all() and len(set(prior)) > 1
    scorer = PriorMix(Bilinear.lexical(), 2.0)
    assert np.allclose(scorer.score_matrix(queries, documents), plain + 2.0 * prior, atol=1e-5)
    pairs = scorer.score_pairs(queries, documents[:3])
    assert np.allclose(pairs, np.diag(scorer.score_matrix(queries, documents[:3])), atol=1e-5)
    alone = PriorMix(None, 1.0).score_matrix(queries, documents)
    assert np.allclose(alone, prior)


def test_B20_anchor_texts_are_index_terms_of_the_linked_document() -> None:
    # Document 1 is linked by 0 and 2, document 0 by 2; nothing links to document 2.
    counts = sp.csr_matrix(np.array([[1, 2, 0], [0, 0, 1], [3, 0, 4]], np.float32))
    links = sp.csr_matrix(np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0]], np.float32))
    texts = with_anchors(Texts(counts, tfidf_rows(counts, idf_of(counts)), ("a", "b", "c"), idf_of(counts)), links)
    rows = weighted_anchors(texts.view(ANCHORS), 0.5)
    np.testing.assert_allclose(rows.toarray(), np.array([[2.5, 2, 2], [2, 1, 3], [3, 0, 4]]))
    np.testing.assert_allclose(weighted_anchors(texts.view(ANCHORS), 0.0).toarray(), counts.toarray())
    query = sp.csr_matrix(np.array([[0, 1, 0]], np.float32))
    okapi = fit_okapi(rows)
    # Only the linking text of document 1 holds word b: idf and counts are those of the joined texts.
    scores = AnchorTexts(okapi, 0.5).score_matrix(query, texts.view(ANCHORS))
    idf, mean = float(np.log(1 + 1.5 / 2.5)), (6.5 + 6 + 7) / 3
    tf, length = np.array([2.0, 1.0]), np.array([6.5, 6.0])
    expected = idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean))
    np.testing.assert_allclose(scores[0], np.array([*expected, 0.0]), rtol=1e-6)
    again = AnchorTexts(okapi, 0.5).score_pairs(query[[0, 0, 0]], texts.view(ANCHORS))
    np.testing.assert_allclose(again, scores[0], rtol=1e-6)


def test_B20_validation_weighs_each_text_once(study_of_all: Study) -> None:
    """The loss of BM25 over anchor texts is that of its scores, and no row is weighed for each of its tuples."""
    study = study_of_all
    weighed: list[int] = []

    class Counting(AnchorTexts):
        def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
            weighed.append(d_rows.shape[0])
            return super().sides(q_rows, d_rows)

    scorer = Counting(fit_okapi(weighted_anchors(study.documents.view(ANCHORS), 0.5)), 0.5)
    fitted = Fitted(scorer, "counts", ANCHORS)
    loss = links_loss(study, study.valid, fitted)
    assert weighed == [len(study.valid.pool)]
    scores = fitted.scores(study, study.valid).block(0, len(study.valid.queries))
    tuples = study.valid.tuples
    better, worse = scores[tuples.query, tuples.positive], scores[tuples.query, tuples.negative]
    assert loss == pytest.approx(((better < worse) + 0.5 * (better == worse)).mean(), abs=1e-12)


def test_B20_only_training_links_give_anchor_texts(corpus: PaperCorpus) -> None:
    study = retrieval_study(corpus, Variant("x", anchors=True))
    row = {one: place for place, one in enumerate(corpus.ids)}
    of_test, target = next(pair for pair in corpus.test if sum(one[1] == pair[1] for one in corpus.train) > 0)
    sources = [row[source] for source, linked in corpus.train if linked == target]
    linking = study.documents.view(ANCHORS)[row[target], len(study.documents.words) :].toarray()
    expected = study.documents.counts[sources].toarray().sum(axis=0, keepdims=True)
    np.testing.assert_array_equal(linking, expected, f"{of_test} links to it in the test only")


def test_M20_the_degree_of_psi_k_is_the_budgets(corpus: PaperCorpus, results: Results) -> None:
    assert results.settings["all", "psi-k"]["degree"] == 5
    study = retrieval_study(corpus, Variant("k", small=True))
    for degree in (2, 3):
        job = FitInput(study, replace(TINY, degree=degree), links_loss, np.random.default_rng(0), lambda *_: None)
        scorer = registry.system("psi-k").fit(job).scorer
        assert isinstance(scorer, Bilinear) if degree == 2 else isinstance(scorer, Polynomial) and scorer.degree == 3


def test_what_is_tuned_is_said(results: Results) -> None:
    settings = {name: results.settings["all", name] for name in results.titles}
    assert {"rate", "start", "dims", "steps", "validation"} <= settings["utv-plus-i"].keys()
    assert {"alpha", "dims"} <= settings["lsi-tf-idf"].keys()
    assert {"k1", "b", "weight"} <= settings["bm25-pagerank"].keys()
    assert {"mu", "features"} <= settings["cfh-1-grams"].keys()
    assert settings["hash-kernels-6m"]["slots"] == 2 * settings["hash-kernels-3m"]["slots"] == 6_000
    assert 0 < settings["jelinek-mercer"]["lambda"] <= 1


@pytest.mark.parametrize(("name", "diagonal"), [("margin-ranking-perceptron", 1.0), ("zero-diagonal", 0.0)])
def test_M03_M04_words_beyond_the_matrix_keep_its_start(
    corpus: PaperCorpus, name: str, diagonal: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_systems, "DENSE_WORDS", 5)
    study = retrieval_study(corpus, Variant("dense", small=True))
    job = FitInput(study, TINY, links_loss, np.random.default_rng(0), lambda *_: None)
    fitted = registry.system(name).fit(job)
    words = sp.csr_matrix(np.eye(len(study.documents.words), dtype=np.float32))[5:]
    np.testing.assert_array_equal(fitted.scorer.score_matrix(words, words), diagonal * np.eye(words.shape[0]))
    assert fitted.settings["words"] == 5


def test_M12_M14_both_models_of_a_mixture_choose_from_the_rates_given_by_a_tenth_of_the_steps(
    corpus: PaperCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, float, int]] = []

    def counted(shape: PlainShape, *args: Any, **settings: Any) -> Scorer:
        calls.append((shape.name, settings["rate"], settings["n_steps"]))
        return fit_plain(shape, *args, **settings)

    monkeypatch.setattr("papers.fitting.fit_plain", counted)
    study = retrieval_study(corpus, Variant("mix", small=True))
    budget = replace(TINY, rates=(0.3, 0.06), grid=6)
    job = FitInput(study, budget, links_loss, np.random.default_rng(0), lambda *_: None)
    fitted = registry.system("cfh-1-grams").fit(job)
    probes = {(shape, rate) for shape, rate, steps in calls if steps == TINY.n_steps // 10}
    assert probes == {(one, rate) for one in ("low_rank", "no_identity") for rate in (0.3, 0.06)} | {
        ("no_identity", 0.02)
    }
    assert [shape for shape, _, steps in calls if steps == TINY.n_steps] == ["low_rank", "no_identity"]
    assert {steps for _, _, steps in calls} == {TINY.n_steps // 10, TINY.n_steps}
    assert isinstance(fitted.scorer, Mix)
    losses = [job.validate()(Mix(fitted.scorer.parts, (1.0, mu))) for mu in retrieval_systems.MUS]
    assert fitted.settings["mu by grid"] == retrieval_systems.MUS[int(np.argmin(losses))]
    calls.clear()
    registry.system("cfh-5").fit(job)
    assert {rate for _, rate, _ in calls} == {0.3, 0.06, 0.02}, "the rates that were asked for, and a smaller one"


def test_B03_B04_lsi_sees_the_frequent_words_and_tf_idf_all_of_them(
    corpus: PaperCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_systems, "LSI_WORDS", 30)
    study = retrieval_study(corpus, Variant("full", n_words=None))
    job = FitInput(study, replace(TINY, grid=11), links_loss, np.random.default_rng(0), lambda *_: None)
    fitted = registry.system("lsi").fit(job)
    n_dims = fitted.settings["dims"]
    assert isinstance(fitted.scorer, Projection)
    words = fit_lsa(study.documents.rows[:, :30], n_dims, rng=np.random.default_rng(1)).A
    np.testing.assert_allclose(np.abs(fitted.scorer.A), np.abs(words), atol=1e-4)
    mixed = registry.system("lsi-tf-idf").fit(job)
    assert isinstance(mixed.scorer, Mix)
    rare = sp.csr_matrix(np.eye(len(study.documents.words), dtype=np.float32))[30:]
    share = 1.0 - mixed.settings["alpha"]
    np.testing.assert_allclose(mixed.scorer.score_matrix(rare, rare), share * np.eye(rare.shape[0]), atol=1e-6)


@pytest.mark.parametrize(("grid", "tried"), [(1, {4}), (2, {4, 2}), (11, {4, 2, 8, 20})])
def test_B03_a_small_grid_begins_with_the_dimensions_of_the_budget(
    corpus: PaperCorpus, grid: int, tried: set[int]
) -> None:
    study = retrieval_study(corpus, Variant("grid", small=True))
    seen: list[int] = []

    def loss(_study: Study, _trial: StudyTrial, fitted: Fitted) -> float:
        assert isinstance(fitted.scorer, Projection)
        seen.append(fitted.scorer.n_dims)
        return 0.5

    job = FitInput(study, replace(TINY, grid=grid), loss, np.random.default_rng(0), lambda *_: None)
    assert registry.system("lsi").fit(job).settings["dims"] == 4, "the first of equals"
    assert set(seen) == tried


def test_T12_lsi_has_the_dimensions_of_its_column(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "made")
    request = TaskRequest(folder, tmp_path / "out", ("lsi",), small=True)
    section = registry.task("T12").run(request, lambda *_: None)
    assert section.tables[0].columns == ("system", "N = 5", "N = 10")
    chosen = {row[0]: row[1] for row in section.tables[-1].rows}
    assert chosen["LSI, N5"].startswith("dims 5,") and chosen["LSI, N10"].startswith("dims 10,")


def test_systems_without_what_they_need_have_a_reason(corpus: PaperCorpus, tmp_path: Path) -> None:
    study = retrieval_study(corpus, Variant("T3b", keywords=10))
    systems = registry.chosen(("cfh-2-grams",), ())
    request = TaskRequest(tmp_path, tmp_path)
    found = run_ranking("T3b", [study], systems, links_loss, links_measure, request, TINY, lambda *_: None)
    assert "2-grams" in found.failure("cfh-2-grams")


def test_the_frequent_words_are_the_papers_or_a_third() -> None:
    assert [n_frequent_words(n) for n in (2_500_000, 60_000, 59_999, 30_000, 2)] == [30_000, 30_000, 19_999, 10_000, 1]


def test_orderings_say_what_holds_what_is_open_and_what_is_reversed() -> None:
    rng = np.random.default_rng(0)
    low, noise = rng.random(200), rng.normal(0, 0.01, 200)
    values = {
        ("s", "good"): {"AP": low + 0.2 + noise, "rank loss": low + noise},
        ("s", "bad"): {"AP": low, "rank loss": low + 0.2},
        ("s", "same"): {"AP": low + noise, "rank loss": low - noise},
    }
    found = Results("T", {"good": "G", "bad": "B", "same": "S"}, values)
    claims = (
        Claim("good", "bad", "P"),
        Claim("bad", "good", "P"),
        Claim("same", "bad", "P"),
        Claim("good", "none", "P"),
    )
    sentences = orderings(found, claims, "AP")
    assert [one.split(": ")[2].split(" in ")[0] for one in sentences] == [
        "holds here",
        "reversed here",
        "not significant here",
    ]
    assert "G above B" in sentences[0] and "200 queries" in sentences[0] and "p < .0001" in sentences[0]
    assert "holds here in rank loss" in orderings(found, claims, "AP", "rank loss")[0], "less rank loss is better"


def test_unknown_names_have_near_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean utv-plus-i"):
        registry.system("utv-plus-1")
    with pytest.raises(ConfigError, match=r"no task 'T99': did you mean T9.*T1a"):
        registry.task("T99")
    assert registry.task("t1A").id == "T1a"
    assert len(registry.chosen(("all",), ())) == len(registry.systems())
    assert [one.name for one in registry.chosen((), ("tf-idf",))] == ["tf-idf"]


def test_default_systems_and_the_papers_figures_name_known_systems() -> None:
    for task in registry.tasks().values():
        for name in (*task.systems, *task.paper):
            assert name in registry.systems(), f"{task.id}: {name}"
        assert set().union(*task.paper.values(), set()) <= {*COLUMNS} or task.id[1] not in "123"


def test_studies_of_a_seed_are_equal_and_of_another_differ(corpus: PaperCorpus) -> None:
    def drawn(seed: int) -> Study:
        return retrieval_study(corpus, Variant("x", seed=seed, keywords=5))

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert abs(first.test.queries.rows - again.test.queries.rows).sum() == 0
    assert abs(first.test.queries.rows - other.test.queries.rows).sum() > 0
