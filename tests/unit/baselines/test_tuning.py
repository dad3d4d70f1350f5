"""The search of settings, baselines by name, and the comparison of a model with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.baselines.comparison import MODEL, RANK_LOSS, Comparison, compare_systems
from reranker.baselines.lexical import LexicalCorpus
from reranker.baselines.tuning import LexicalTask, fit_baselines, parse_baselines
from reranker.errors import ConfigError
from reranker.evaluation.protocols import RankingTask
from reranker.evaluation.ranking import InnerProducts
from reranker.evaluation.runs import read_run
from tests.seeds import seeded_rng

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
    with pytest.raises(ConfigError, match="tfidf, bm25, lsi:K"):
        parse_baselines(f"bm25,{text}")


def test_baseline_lists() -> None:
    assert parse_baselines(" bm25, tfidf,bm25,lsi:20 ") == ("bm25", "tfidf", "lsi:20")
    assert parse_baselines("") == ()


def perfect(task: RankingTask) -> InnerProducts:
    return InnerProducts(np.eye(N, dtype=np.float32), task.grades.toarray().T.copy())


def compared(model: InnerProducts, corpus: LexicalCorpus, task: LexicalTask, rng: np.random.Generator) -> Comparison:
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
    assert "cannot be told apart" in same.sentence()
    alone = compare_systems(perfect(task.task), {}, task, seeded_rng())
    assert (alone.verdict, alone.best_baseline, alone.headline) == ("alone", None, None)
    assert "MAP 1.0000" in alone.sentence()


def test_files_and_report(tmp_path: Path) -> None:
    corpus, task = titles_matter()
    fitted = fit_baselines(("tfidf", "lsi:5"), corpus, None, seeded_rng())
    comparison = compare_systems(perfect(task.task), fitted, task, seeded_rng(), run_dir=tmp_path / "runs")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "lsi-5.run", "model.run", "qrels.txt", "tfidf.run",
    ]  # fmt: skip
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
