"""The search of settings, baselines by name, and the comparison of a model with them."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import term_rows
from reranker.baselines.comparison import MODEL, RANK_LOSS, SystemComparison, compare_systems
from reranker.baselines.fitted import REMEMBERING, fit_baselines, parse_baselines
from reranker.errors import ConfigError
from reranker.evaluation import InnerProducts, Links, RankingTask, draw_tuples, evaluate
from reranker.lexical import tuning as lexical
from reranker.lexical.bm25 import QUERY_TF, LexicalSettings
from reranker.lexical.corpus import LexicalCorpus, RememberedQueries
from reranker.lexical.tuning import COVERING, FoldedMeasure, LexicalMeasure, LexicalTask, best_lexical, tune_lexical
from tests.seeds import seeded_rng
from tests.unit.evaluation.read_run import read_run

N = 80


def titles_matter() -> tuple[LexicalCorpus, LexicalTask]:
    """Document i + 1 is relevant to i, and i's text holds the title word of i + 1 among noise."""
    rng = seeded_rng()
    title, text = np.zeros((N, 2 * N)), np.zeros((N, 2 * N))
    for document in range(N):
        title[document, document] = 1
        text[document, (document + 1) % N] = 1
        text[document, N + rng.integers(0, N, 12)] = 1
    corpus = LexicalCorpus([sp.csr_matrix(field.astype(np.float32)) for field in (title, text)])
    names = tuple(f"{number:03d}" for number in range(N))
    grades = sp.csr_matrix(np.roll(np.eye(N, dtype=np.float32), 1, axis=1))
    task = RankingTask(names, names, grades, sp.csr_matrix(np.eye(N, dtype=bool)))
    return corpus, LexicalTask(task, corpus.document_queries(np.arange(N)), np.arange(N))


def test_tuning_finds_that_the_title_matters() -> None:
    corpus, task = titles_matter()
    plain = fit_baselines(("tfidf", "bm25", "lsi:5"), corpus, None, seeded_rng())
    tuned = fit_baselines(("tfidf", "bm25", "lsi:5"), corpus, task, seeded_rng())
    assert corpus.main_field == 1
    for name in ("tfidf", "bm25"):
        assert tuned[name].settings["field_weights"][0] > 1
        assert tuned[name].settings["field_weights"][1] == 1
    for name, baseline in tuned.items():
        before = task.mean_ap(plain[name].scorer(task.queries, task.documents))
        after = task.mean_ap(baseline.scorer(task.queries, task.documents))
        assert after == baseline.tuned_ap
        assert after >= before
        assert plain[name].tuned_ap is None


def tied_corpus(n: int = 60, n_words: int = 9) -> tuple[LexicalCorpus, LexicalTask]:
    """Few words and small counts, so that many documents have equal scores; some pairs do not take part."""
    rng = seeded_rng(5)
    corpus = LexicalCorpus([sp.csr_matrix(rng.poisson(rate, (n, n_words)).astype(np.float32)) for rate in (0.1, 0.4)])
    names = tuple(f"{number:02d}" for number in range(n))
    marks = rng.integers(0, 9, (n, n))
    grades = sp.csr_matrix(np.where(marks == 0, 1, 0).astype(np.float32))
    return corpus, LexicalTask(
        RankingTask(names, names, grades, sp.csr_matrix(marks == 1)),
        corpus.document_queries(np.arange(n)),
        np.arange(n),
    )


@pytest.mark.parametrize("form", ["bm25", "tfidf"])
def test_values_among_all_documents_are_the_exact_ones(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    corpus, task = tied_corpus()
    measure, rng = LexicalMeasure(corpus, task, form), seeded_rng()
    settings = LexicalSettings(form, (2.0, 1.0), (0.7, 1.0), k1=1.5, b=(0.1, 0.8), mean_lengths=corpus.mean_lengths)
    monkeypatch.setattr(lexical, "N_CANDIDATES", len(task.documents))
    everything = measure.among([replace(settings, field_weights=(0.0, 1.0))])
    np.testing.assert_array_equal(everything.values(settings), measure.values(settings))
    some = np.sort(rng.permutation(measure.n_queries)[:17])
    np.testing.assert_array_equal(everything.values(settings, some), measure.values(settings, some))


def test_values_among_few_candidates_are_not_below_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, task = tied_corpus()
    measure = LexicalMeasure(corpus, task, "bm25")
    near, far = (
        LexicalSettings("bm25", (weight, 1.0), (1.0, 1.0), b=(0.5, 0.5), mean_lengths=corpus.mean_lengths)
        for weight in (1.0, 50.0)
    )
    monkeypatch.setattr(lexical, "N_CANDIDATES", 10)
    of_near, of_both = measure.among([near]), measure.among([near, far])
    for settings in (near, far):
        exact = measure.values(settings)
        assert (of_near.values(settings) >= of_both.values(settings)).all()
        assert (of_both.values(settings) >= exact).all()
        assert of_near.values(settings).sum() > exact.sum(), "documents that are no candidates are not ranked"


def test_a_search_among_candidates_ends_where_the_exact_value_is_not_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, task = titles_matter()
    monkeypatch.setattr(lexical, "N_CANDIDATES", 2)
    start = LexicalSettings("bm25", (30.0, 1.0), (1.0, 1.0), b=(0.5, 0.5), mean_lengths=corpus.mean_lengths)
    tuned = tune_lexical(corpus, [task], seeded_rng(), ("bm25",), start=start)["bm25"]
    before = LexicalMeasure(corpus, task, "bm25").values(start).mean()
    assert tuned.value is not None
    assert tuned.value >= before


@pytest.mark.parametrize("query_tf", QUERY_TF)
@pytest.mark.parametrize("form", ["bm25", "tfidf"])
@pytest.mark.parametrize("coverage", [(), (0.0, 5.0), (30.0, 0.7)])
def test_the_measure_is_that_of_evaluate_to_the_last_bit(form: str, query_tf: str, coverage: tuple[float, ...]) -> None:
    corpus, task = tied_corpus()
    settings = LexicalSettings(
        form, (3.3, 1.0), (0.0, 1.0), 1.7, (0.2, 0.9), (1.1, 4.2), query_tf=query_tf, factor=0.37, coverage=coverage
    )
    scorer = corpus.scorer(task.queries, task.documents, settings)
    expected = evaluate(task.task, scorer, draw_tuples(task.task, seeded_rng(), 0)).values["AP"]
    measure = LexicalMeasure(corpus, task, form)
    assert np.array_equal(measure.values(settings), expected)
    assert np.array_equal(measure.values(settings, np.array([3, 7])), expected[[3, 7]])


def asked_again(n: int = 60) -> tuple[LexicalCorpus, LexicalTask]:
    """Each document is asked for by four queries of words of its own that no text holds, and says other words."""
    rng = seeded_rng(6)
    texts = LexicalCorpus([sp.csr_matrix(rng.poisson(0.2, (n, 50)).astype(np.float32))])
    words = (
        50 + 4 * np.repeat(np.arange(n), 4)[:, None] + rng.permuted(np.tile(np.arange(4), (4 * n, 1)), axis=1)[:, :2]
    )
    counts = np.zeros((4 * n, 50 + 4 * n), np.float32)
    np.put_along_axis(counts, words, 1, axis=1)
    asked = sp.csr_matrix(counts)
    queries = term_rows(asked.data, asked.indices, asked.indptr)
    ids = tuple(f"{number:03d}" for number in range(4 * n))
    relevant = Links.of((query, f"{number // 4:02d}") for number, query in enumerate(ids))
    names = tuple(f"{number:02d}" for number in range(n))
    row_of = {name: row for row, name in enumerate(names)}
    remembered = RememberedQueries.of(relevant, np.ones(len(relevant)), row_of, lambda _: queries)
    corpus = texts.remembering(remembered, seeded_rng())
    grades = sp.csr_matrix(np.repeat(np.eye(n, dtype=np.float32), 4, axis=0))
    task = RankingTask(ids, names, grades, sp.csr_matrix(np.zeros((4 * n, n), dtype=bool)))
    return corpus, LexicalTask(task, corpus.text_queries(queries), np.arange(n))


@pytest.mark.parametrize("case", [tied_corpus, asked_again])
def test_the_memory_of_a_measure_is_free_at_once(case: Callable[[], tuple[LexicalCorpus, LexicalTask]]) -> None:
    """The postings of a million documents must not wait for the garbage collector."""
    corpus, task = case()
    gc.disable()
    try:
        ones = (1.0,) * len(corpus.fields)
        settings = LexicalSettings("bm25", ones, ones, b=ones, mean_lengths=corpus.mean_lengths)
        measure = (FoldedMeasure if corpus.without else LexicalMeasure)(corpus, task, "bm25")
        few = measure.among([settings])
        assert measure.values(settings).shape == few.values(settings).shape
        kept = [weakref.ref(each) for each in (measure, few, corpus, *corpus.without)]
        del measure, few, corpus
        assert [each() for each in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_a_query_asks_documents_that_do_not_remember_it() -> None:
    """What a fold measures is the score of the corpus without it, to the last bit; no query finds itself."""
    corpus, task = asked_again()
    settings = LexicalSettings("bm25", (1.0, 5.0), (1.0, 0.0), 10.0, (0.5, 0.2), corpus.mean_lengths)
    folds = np.array([corpus.fold_of[query] for query in task.task.query_ids])
    expected = np.zeros(len(folds))
    for fold, without in enumerate(corpus.without):
        part = task.part(np.flatnonzero(folds == fold))
        scorer = without.scorer(part.queries, part.documents, settings)
        expected[folds == fold] = evaluate(part.task, scorer, draw_tuples(part.task, seeded_rng(), 0)).values["AP"]
    measure = FoldedMeasure(corpus, task, "bm25")
    assert np.array_equal(measure.values(settings), expected)
    assert np.array_equal(measure.values(settings, np.array([9, 3])), expected[[9, 3]])
    assert 0.5 < expected.mean() < task.mean_ap(corpus.scorer(task.queries, task.documents, settings))


def test_tuning_weighs_what_documents_remember() -> None:
    corpus, task = asked_again()
    fitted = fit_baselines(("bm25", REMEMBERING), corpus, task, seeded_rng())
    weights = fitted[REMEMBERING].settings["field_weights"]
    assert weights[0] == 1
    assert weights[1] > 0
    assert (fitted[REMEMBERING].tuned_ap or 0) > 0.5 > (fitted["bm25"].tuned_ap or 0)
    assert fitted[REMEMBERING].settings["query_weights"] == [1.0, 0.0]
    assert (
        fit_baselines((REMEMBERING,), corpus, task, seeded_rng())[REMEMBERING].settings == fitted[REMEMBERING].settings
    )


def texts_of(corpus: LexicalCorpus, task: LexicalTask) -> LexicalTask:
    """Return the task with the queries' second field as texts."""
    return LexicalTask(task.task, (task.queries[1],), task.documents)


def test_one_row_a_document_serves_texts_and_documents() -> None:
    corpus, task = titles_matter()
    tasks = [task, texts_of(corpus, task)]
    tuned = tune_lexical(corpus, tasks, seeded_rng())
    best = best_lexical(tuned)
    assert best.value == max(each.value or 0.0 for each in tuned.values())
    values = [one.mean_ap(corpus.scorer(one.queries, one.documents, best.settings)) for one in tasks]
    assert best.value == np.mean(values)
    measures = [LexicalMeasure(corpus, one, best.settings.form) for one in tasks]
    gap = np.mean([measure.gap(best.settings, 20_000, seeded_rng(3)) for measure in measures])
    assert gap == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("made", [titles_matter, asked_again])
def test_the_settings_do_not_depend_on_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], tuple[LexicalCorpus, LexicalTask]]
) -> None:
    corpus, task = made()
    for name in ("_WORDS_A_CORE", "_POSTINGS_A_CORE", "_SHARED_A_CORE"):
        monkeypatch.setattr(lexical, name, 5)
    # The folds of a memory take turns with parts of queries, and the forms are tuned at the same time.
    forms = ("bm25",) if corpus.without else ("tfidf", "bm25")
    found = []
    for n_cores in (3, 2, 1):
        monkeypatch.setattr(os, "cpu_count", lambda n_cores=n_cores: n_cores)
        found.append(tune_lexical(corpus, [task], seeded_rng(), forms, with_coverage=not corpus.without))
    assert found[0] == found[1] == found[2]
    assert list(found[0]) == [*forms, *[COVERING] * (not corpus.without)]
    one_by_one = [tune_lexical(corpus, [task], seeded_rng(), (form,)) for form in forms]
    assert all(found[0][form] == one[form] for form, one in zip(forms, one_by_one, strict=True))


def test_nothing_to_tune_on_gives_plain_bm25() -> None:
    corpus, _ = titles_matter()
    best = best_lexical(tune_lexical(corpus, [], seeded_rng()))
    assert (best.value, best.notes) == (None, ())
    means = tuple(float(field.sum()) / N for field in corpus.fields)
    assert best.settings == LexicalSettings("bm25", (1.0, 1.0), (1.0, 1.0), 1.2, (0.75, 0.75), means)


def rows_of(texts: list[list[int]]) -> sp.csr_matrix:
    return sp.csr_matrix(np.array([np.bincount(words, minlength=8) for words in texts], dtype=np.float32))


TEXTS = [[0, 1], [1, 2, 2], [2, 3], [3, 4, 4, 5], [5, 6], [6, 7, 0]]
HOSTILE = {
    "one field": [rows_of(TEXTS)],
    "empty titles": [rows_of([[]] * 6), rows_of(TEXTS)],
    "all titles equal": [rows_of([[7]] * 6), rows_of(TEXTS)],
    "identical documents": [rows_of([[1]] * 6), rows_of([[0, 1, 2]] * 6)],
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("n_queries", [1, 6])
def test_odd_collections_are_tuned_or_left_plain(fields: list[sp.csr_matrix], n_queries: int) -> None:
    corpus = LexicalCorpus(fields)
    names = tuple("abcdef")
    grades = sp.csr_matrix(np.roll(np.eye(6, dtype=np.float32), 1, axis=1)[:n_queries])
    ranking = RankingTask(names[:n_queries], names, grades, sp.csr_matrix(np.eye(6, dtype=bool)[:n_queries]))
    task = LexicalTask(ranking, corpus.document_queries(np.arange(n_queries)), np.arange(6))
    for tuned in tune_lexical(corpus, [task], seeded_rng()).values():
        empty = [not field.nnz for field in corpus.fields]
        assert [weight == 0 for weight in tuned.settings.field_weights][: len(empty) - 1] >= empty[:-1]
        scorer = corpus.scorer(task.queries, task.documents, tuned.settings)
        assert tuned.value == task.mean_ap(scorer)
        assert tuned.settings.factor > 0


def test_queries_without_known_words_rank_by_id() -> None:
    corpus, task = titles_matter()
    unknown = LexicalTask(
        task.task, (sp.csr_matrix(np.zeros((N, len(corpus.columns)), dtype=np.float32)),), task.documents
    )
    tuned = best_lexical(tune_lexical(corpus, [unknown], seeded_rng()))
    assert tuned.settings.factor == 1.0
    assert tuned.value == unknown.mean_ap(corpus.scorer(unknown.queries, unknown.documents, tuned.settings))


PLAIN = LexicalSettings("bm25", (1.0, 1.0), (1.0, 1.0), b=(0.75, 0.75), mean_lengths=(1.0, 9.0))


def searched(hill: Callable[[LexicalSettings], float]) -> tuple[LexicalSettings, tuple[str, ...]]:
    """Return where the pattern search of documents as queries ends on a hill, and its notes."""
    axes = lexical._axes(PLAIN, 1, (None, None), True)

    def is_better(other: Any, point: Any) -> bool:
        after, before = (hill(lexical._settings(PLAIN, axes, each)) for each in (other, point))
        return after > before + 1e-5

    usual = tuple(axis.usual((1.0, 1.0)) for axis in axes)
    start = lexical._starts(axes, usual, QUERY_TF, seeded_rng())[0]
    point = lexical._pattern_search(axes, QUERY_TF, start, is_better, (1.0, 0.5, 0.25, 0.125, 0.0625))
    return lexical._settings(PLAIN, axes, point), lexical._notes(axes, point)


def test_the_search_finds_the_top_of_a_hill_between_the_steps() -> None:
    def hill(s: LexicalSettings) -> float:
        ratio = math.log(s.field_weights[0] / 90) if s.field_weights[0] else 9.0
        counted = float(s.query_tf == "once") + float(s.query_weights[0] == 0)
        return counted - ratio**2 - math.log(s.k1 / 40) ** 2 - (s.b[0] - 0.4) ** 2

    best, notes = searched(hill)
    assert (best.query_tf, best.query_weights, best.b[1], notes) == ("once", (0.0, 1.0), 0.75, ())
    assert best.field_weights[0] == pytest.approx(90, rel=0.1)
    assert best.k1 == pytest.approx(40, rel=0.1)
    assert best.b[0] == pytest.approx(0.4, abs=0.02)


def test_a_bound_that_is_reached_is_said() -> None:
    best, notes = searched(lambda s: s.k1 + s.field_weights[0] - s.b[1])
    assert (best.k1, best.field_weights, best.b) == (500.0, (1000.0, 1.0), (0.75, 0.0))
    assert notes == (
        "k1 ended at 500, the bound of the search",
        "field_weights of field 1 ended at 1000, the bound of the search",
    )


def test_a_flat_place_is_not_left() -> None:
    assert searched(lambda _: 1.0) == (PLAIN, ())


SCRIPT = """
import numpy as np
from reranker.lexical.tuning import tune_lexical
from tests.unit.baselines.test_tuning import asked_again, titles_matter
print([tune_lexical(corpus, [task], np.random.default_rng(4)) for corpus, task in (titles_matter(), asked_again())])
"""


def test_equal_seeds_give_equal_settings_whatever_the_hash_seed() -> None:
    worlds = titles_matter(), asked_again()
    printed = {str([tune_lexical(corpus, [task], np.random.default_rng(4)) for corpus, task in worlds])}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        printed.add(done.stdout.splitlines()[-1])
    assert len(printed) == 1


def whole_titles_matter() -> tuple[LexicalCorpus, LexicalTask]:
    """Return queries that hold the two common words of one title, and three of the four rare words of another."""
    rng, n = seeded_rng(), 32
    title, text = np.zeros((2 * n, 12 + 4 * n + 40)), np.zeros((2 * n, 12 + 4 * n + 40))
    queries = np.zeros((n, title.shape[1]))
    for number in range(n):
        common, rare = [number % 8, 8 + number // 8], 12 + 4 * number + np.arange(4)
        title[number, common] = title[n + number, rare] = 1
        queries[number, [*common, *rare[:3]]] = 1
    for document in range(2 * n):
        text[document, rng.permutation(40)[:20] + 12 + 4 * n] = 1
    corpus = LexicalCorpus([sp.csr_matrix(field.astype(np.float32)) for field in (title, text)])
    names = tuple(f"{number:03d}" for number in range(2 * n))
    grades = sp.csr_matrix(np.eye(n, 2 * n, dtype=np.float32))
    task = RankingTask(names[:n], names, grades, sp.csr_matrix(np.zeros((n, 2 * n), dtype=bool)))
    return corpus, LexicalTask(task, (sp.csr_matrix(queries.astype(np.float32)),), np.arange(2 * n))


def test_coverage_is_found_where_it_is_asked_for_and_helps() -> None:
    corpus, task = whole_titles_matter()
    tuned = tune_lexical(corpus, [task], seeded_rng(), with_coverage=True)
    assert list(tuned) == ["bm25", COVERING, "tfidf"]
    assert tuned["bm25"] == tune_lexical(corpus, [task], seeded_rng())["bm25"]
    assert (tuned["bm25"].values, tuned["bm25"].settings.coverage) == ((0.5,), ())
    assert best_lexical(tuned) is tuned[COVERING]
    assert tuned[COVERING].values == (1.0,)
    assert tuned[COVERING].settings.coverage[0] > 0


def test_coverage_is_never_below_bm25_without_it() -> None:
    corpus, task = titles_matter()
    tuned = tune_lexical(corpus, [task], seeded_rng(), ("bm25",), with_coverage=True)
    assert tuned["bm25"].values == (1.0,)
    assert tuned[COVERING].values == (1.0,)
    assert (tuned[COVERING].value or 0.0) >= (tuned["bm25"].value or 0.0)


def test_few_queries_keep_settings_near_the_usual_ones() -> None:
    """With the same queries, repeated, the best settings are taken; with a few of them, cautious ones."""
    corpus, task = titles_matter()
    few, many = (
        lexical._tuned(
            corpus, [task], "bm25", (None, None), False, None, lexical._Bounds(0.0, n), np.random.default_rng(0)
        )["bm25"].settings
        for n in (1, 10**9)
    )

    def distance(settings: LexicalSettings) -> float:
        return abs(math.log(settings.k1 / 1.2)) + abs(math.log(settings.field_weights[0] / lexical.TITLE_WEIGHT))

    assert distance(few) < 1.0 < distance(many)


def test_a_sample_keeps_every_judged_document() -> None:
    _, task = titles_matter()
    part = task.sample(seeded_rng(), max_queries=10, max_documents=20)
    assert part.task.grades.shape == (10, 20)
    assert part.task.grades.nnz == 10
    assert [part.task.document_ids.index(task.task.document_ids[row]) for row in part.documents] == list(range(20))
    whole = task.sample(seeded_rng())
    assert whole.task.query_ids == task.task.query_ids


@pytest.mark.parametrize("text", ["bm52", "lsi", "lsi:", "lsi:0", "lsi:ten", "tfidf:3"])
def test_unknown_baselines_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tfidf, bm25, bm25\+queries, lsi:K"):
        parse_baselines(f"bm25,{text}")


def test_baseline_lists() -> None:
    assert parse_baselines(" bm25, tfidf,bm25,lsi:20 ") == ("bm25", "tfidf", "lsi:20")
    assert parse_baselines("") == ()


def perfect(task: RankingTask) -> InnerProducts:
    return InnerProducts(np.eye(N, dtype=np.float32), task.grades.toarray().T.copy())


def compared(
    model: InnerProducts, corpus: LexicalCorpus, task: LexicalTask, rng: np.random.Generator
) -> SystemComparison:
    return compare_systems(model, fit_baselines(("tfidf", "bm25"), corpus, task, rng), task, rng)


def test_a_perfect_model_is_better_and_a_blind_one_worse() -> None:
    corpus, task = titles_matter()
    comparison = compared(perfect(task.task), corpus, task, seeded_rng())
    assert comparison.systems[MODEL].mean("AP") == 1.0
    assert comparison.systems[MODEL].rank_loss() == 0.0
    blind = InnerProducts(np.zeros((N, 1), dtype=np.float32), np.zeros((N, 1), dtype=np.float32))
    worse = compared(blind, corpus, task, seeded_rng())
    assert worse.verdict == "worse"
    assert "worse than the best lexical baseline" in worse.sentence()
    assert worse.tests["tfidf"][RANK_LOSS].difference > 0
    best = worse.best_baseline
    assert best is not None
    assert worse.headline == worse.tests[best]["AP"]
    assert worse.headline is not None
    assert worse.headline.difference == pytest.approx(worse.systems[MODEL].mean("AP") - worse.systems[best].mean("AP"))


def test_the_baseline_itself_makes_no_difference() -> None:
    corpus, task = titles_matter()
    fitted = fit_baselines(("tfidf",), corpus, task, seeded_rng())
    same = compare_systems(fitted["tfidf"].scorer(task.queries, task.documents), fitted, task, seeded_rng())
    assert same.verdict == "no difference"
    assert "No difference is shown" in same.sentence()
    alone = compare_systems(perfect(task.task), {}, task, seeded_rng())
    assert (alone.verdict, alone.best_baseline, alone.headline) == ("alone", None, None)
    assert "MAP 1.0000" in alone.sentence()


def test_files_and_report(tmp_path: Path) -> None:
    corpus, task = titles_matter()
    fitted = fit_baselines(("tfidf", "lsi:5"), corpus, None, seeded_rng())
    comparison = compare_systems(perfect(task.task), fitted, task, seeded_rng(), run_dir=tmp_path / "runs")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "lsi-5.run",
        "model.run",
        "qrels.txt",
        "tfidf.run",
    ]
    run = read_run(tmp_path / "runs" / "model.run")
    assert run["000"][0] == "001"
    assert len(run["000"]) == N - 1
    report = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert report["systems"]["model"]["AP"]["mean"] == 1.0
    assert set(report["tests"]["tfidf"]) == {"AP", "P@10", "RR", "nDCG@10", "rank_loss"}
    assert report["settings"]["lsi:5"]["n_dimensions"] == 5


def test_the_same_seed_gives_the_same_report() -> None:
    corpus, task = titles_matter()
    first, second = (compared(perfect(task.task), corpus, task, np.random.default_rng(4)).to_json() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("form", ["bm25", "tfidf"])
def test_stated_weights_are_not_searched_and_their_ratios_count(form: str) -> None:
    corpus, task = titles_matter()

    def tuned(*stated: float | None) -> LexicalSettings:
        return tune_lexical(corpus, [task], seeded_rng(), (form,), stated)[form].settings

    assert tuned(0.3, None).field_weights == (0.3, 1.0)
    assert tuned(3.0, 2.0).field_weights == (1.5, 1.0)
    assert tuned(3.0, 2.0) == tuned(300.0, 200.0)
    assert tuned(None, 100.0) == tuned(None, 1.0) == tuned(None, None)
    for stated in ((3.0, 2.0), (300.0, 200.0)):
        assert tune_lexical(corpus, [], seeded_rng(), (form,), stated)[form].settings.field_weights == (1.5, 1.0)


@pytest.mark.parametrize("form", ["bm25", "tfidf"])
def test_a_search_goes_on_from_settings_of_either_form(form: str) -> None:
    corpus, task = titles_matter()
    first = tune_lexical(corpus, [task], seeded_rng())
    again = tune_lexical(corpus, [task], seeded_rng(), start=first[form].settings)
    assert (again[form].value or 0.0) >= (first[form].value or 1.0)
    assert all(each.settings.form == name for name, each in again.items())


def test_the_first_task_keeps_its_floor_where_two_want_different_rows() -> None:
    corpus, pages = titles_matter()
    asked = np.zeros((N, len(corpus.columns)), np.float32)
    asked[np.arange(N), np.arange(N)] = 1  # the title word of i, which is to find the text that holds it: i - 1
    relevant = sp.csr_matrix(np.roll(np.eye(N, dtype=np.float32), -1, axis=1))
    task = RankingTask(pages.task.query_ids, pages.task.document_ids, relevant, sp.csr_matrix(np.zeros((N, N), bool)))
    words = LexicalTask(task, (sp.csr_matrix(asked),), np.arange(N))
    alone = best_lexical(tune_lexical(corpus, [pages], seeded_rng()))
    both = best_lexical(tune_lexical(corpus, [pages, words], seeded_rng()))
    floor = 0.95 * alone.values[0]
    assert both.values[0] < floor
    kept = best_lexical(tune_lexical(corpus, [pages, words], seeded_rng(), start=alone.settings, floor=floor))
    assert kept.values[0] >= floor
    assert kept.value == pytest.approx(np.mean(kept.values))
    assert kept.values[1] <= both.values[1]
