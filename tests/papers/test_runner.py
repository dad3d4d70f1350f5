"""Running systems side by side: what is kept, what is used again, what fails, and the table of it all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers.measures import links_loss, links_measure
from papers.methods.word_pairs import Bilinear
from papers.registry import Budget, FitInput, Fitted, System, TaskRequest
from papers.results import CachedResult, Claim, ResultCache, Results, fingerprint, orderings, settings_table
from papers.runner import SMALL, run_ranking, sizes, with_budget
from papers.study import Study, StudyTrial, study_texts, study_vocabulary
from reranker.errors import ConfigError, MissingExtra, TrainingError
from reranker.evaluation import draw_tuples, link_task
from reranker.files import write_file

TOKENS = [["cat", "dog", "cat"], ["cat", "fox"], ["dog", "eel"], ["eel", "fox", "gnu"], ["gnu", "cat"], ["owl", "eel"]]
IDS = [str(number) for number in range(len(TOKENS))]
BUDGET = Budget(n_dims=2, n_steps=10)


def study_of(name: str = "small", seed: int = 0) -> Study:
    texts = study_texts(TOKENS, study_vocabulary(TOKENS, 6))
    task = link_task([("0", "1"), ("0", "4"), ("3", "2"), ("5", "2")], [("0", "2")], pool=IDS)
    rows = np.array([int(query) for query in task.query_ids])
    trial = StudyTrial(texts.take(rows), np.arange(6), task, draw_tuples(task, np.random.default_rng(0), 60))
    relevant = sp.csr_matrix((np.ones(1, np.float32), (np.array([0]), np.array([2]))), shape=(6, 6))
    return Study(name, seed, texts, texts, relevant, np.arange(6), trial, trial)


def lexical(job: FitInput) -> Fitted:
    return Fitted(Bilinear.lexical(), settings={"loss": job.validate()(Bilinear.lexical())})


def random_model(job: FitInput) -> Fitted:
    job.progress("drawing", 1, 2)
    U, V = (job.rng.normal(size=(6, job.budget.n_dims)).astype(np.float32) for _ in range(2))
    return Fitted(Bilinear(U, V), settings={"first": float(U[0, 0])})


def counted(fit: Callable[[FitInput], Fitted]) -> tuple[Callable[[FitInput], Fitted], list[str]]:
    calls: list[str] = []

    def fitting(job: FitInput) -> Fitted:
        calls.append(job.study.name)
        return fit(job)

    return fitting, calls


def run(tmp_path: Path, systems: list[System], studies: list[Study] | None = None, budget: Budget = BUDGET) -> Results:
    request = TaskRequest(tmp_path, tmp_path / "out")
    chosen = studies or [study_of()]
    return run_ranking("T0", chosen, systems, links_loss, links_measure, request, budget, lambda *_: None)


def test_values_are_those_of_the_measures_worked_out_by_hand(tmp_path: Path) -> None:
    results = run(tmp_path, [System("tf-idf", ("M01",), "TF-IDF", lexical)])
    values = results.values["small", "tf-idf"]
    # Query 0 (cat, dog) finds 1 and 4 by "cat" above 3 and 5, 2 is known: AP 1. Query 3 (eel, fox, gnu) has 1, 4 and 5
    # beside 2; query 5 (owl, eel) finds 2 by "eel" as the text with the least else in it.
    assert values["AP"].shape == (3,) and values["AP"][0] == 1.0 and values["RR"][2] == 1.0
    assert values["P@10"].tolist() == pytest.approx([0.2, 0.1, 0.1])
    assert values["rank loss"][0] == 0.0
    by_hand = float(np.mean(values["rank loss"]))
    assert results.mean("tf-idf", "rank loss") == pytest.approx(by_hand)


def test_loss_is_the_share_of_wrong_tuples_and_ties_count_half() -> None:
    study = study_of()
    tuples = replace(study.test.tuples)
    object.__setattr__(tuples, "query", np.array([0, 0, 0]))
    object.__setattr__(tuples, "positive", np.array([1, 3, 3]))  # right; a tie at 0; wrong
    object.__setattr__(tuples, "negative", np.array([3, 5, 4]))
    trial = replace(study.test, tuples=tuples)
    assert links_loss(study, trial, Fitted(Bilinear.lexical())) == pytest.approx(0.5)


def test_a_score_that_is_no_number_is_the_worst_loss() -> None:
    class Broken:
        def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> np.ndarray:
            return np.full(q_rows.shape[0], np.nan, np.float32)

    study = study_of()
    assert links_loss(study, study.test, Fitted(Broken())) == float("inf")  # type: ignore[arg-type]


def test_a_second_run_fits_nothing_and_reads_the_same_values(tmp_path: Path) -> None:
    fit, calls = counted(random_model)
    systems = [System("random", ("M06",), "random", fit)]
    first, second = run(tmp_path, systems), run(tmp_path, systems)
    assert calls == ["small"]
    assert second.reused == {("small", "random")} and not first.reused
    for measure, values in first.values["small", "random"].items():
        assert values.tolist() == second.values["small", "random"][measure].tolist()
    assert second.settings == first.settings


def test_another_budget_system_seed_or_content_fits_again(tmp_path: Path) -> None:
    fit, calls = counted(random_model)
    system = System("random", ("M06",), "random", fit)
    run(tmp_path, [system])
    run(tmp_path, [system], budget=replace(BUDGET, n_steps=11))
    assert len(calls) == 2
    run(tmp_path, [system], studies=[study_of(seed=1)])
    assert len(calls) == 3
    changed = study_of()
    changed.documents.rows.data[0] += 0.5
    run(tmp_path, [system], studies=[changed])
    assert len(calls) == 4


def test_equal_seeds_give_equal_values_in_another_folder_and_beside_other_systems(tmp_path: Path) -> None:
    system = System("random", ("M06",), "random", random_model)
    other = System("lexical", ("M01",), "lexical", lexical)
    first = run(tmp_path / "a", [system])
    second = run(tmp_path / "b", [other, system])
    assert first.settings["small", "random"] == second.settings["small", "random"]
    third = run(tmp_path / "c", [system], studies=[study_of(seed=1)])
    assert first.settings["small", "random"] != third.settings["small", "random"]
    report = json.loads((tmp_path / "b/out/T0/small/random.json").read_text())
    assert report["paired_tests"]["reference"] == "lexical"
    assert report["paired_tests"]["p_t_test"]["AP"] == second.paired("random", "lexical", "AP").p_t_test
    runs = [tmp_path / place / "out/T0/small/random.run.gz" for place in "ab"]
    assert runs[0].read_bytes() == runs[1].read_bytes()


def test_what_fails_or_lacks_something_is_a_row_with_its_reason(tmp_path: Path) -> None:
    def diverges(job: FitInput) -> Fitted:
        raise TrainingError("training diverged: lower the rate")

    def lacks_library(job: FitInput) -> Fitted:
        raise MissingExtra("sklearn", "papers")

    fit, calls = counted(diverges)
    missing, attempts = counted(lacks_library)
    systems = [
        System("tf-idf", ("M01",), "TF-IDF", lexical),
        System("diverging", ("M06",), "diverging", fit),
        System("bare", ("B22",), "bare", missing),
        System("mates", ("B08",), "OPCA", lexical, frozenset({"mates"})),
    ]
    for _ in range(2):
        results = run(tmp_path, systems)
    assert len(calls) == 1, "what failed once fails again"
    assert len(attempts) == 2, "a library may have been installed since"
    assert "lower the rate" in results.failure("diverging")
    assert "papers" in results.failure("bare")
    assert results.failure("mates").startswith("needs mates")
    table = results.table("x", {}, ["AP"], "tf-idf")
    assert [row[0] for row in table.rows][1].startswith("diverging (training diverged")
    assert table.rows[1][1:3] == ("", "")


@pytest.mark.parametrize("damage", [b"", b"{}", b"{", b"[1]", b"\xff"])
def test_damaged_files_are_made_again(tmp_path: Path, damage: bytes) -> None:
    fit, calls = counted(lexical)
    systems = [System("tf-idf", ("M01",), "TF-IDF", fit)]
    run(tmp_path, systems)
    folder = tmp_path / "out/T0/small"
    for name in ("tf-idf.json", "tf-idf.npz"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(damage)
        before = len(calls)
        results = run(tmp_path, systems)
        assert len(calls) == before + 1
        assert (folder / "tf-idf.npz").exists() and results.has("tf-idf", "AP")
        assert json.loads((folder / "tf-idf.json").read_text())["system"] == "tf-idf"
        assert len(good) > 0


def test_a_kill_between_the_files_never_joins_values_of_two_runs(tmp_path: Path) -> None:
    shelf = ResultCache(tmp_path, "x")
    shelf.save("a", CachedResult({"AP": np.array([1.0])}), {})
    report = shelf.report.read_bytes()
    shelf.save("b", CachedResult({"AP": np.array([0.0])}), {})
    shelf.report.write_bytes(report)  # killed before the second report was renamed
    assert shelf.load("a") is None and shelf.load("b") is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_file(path, b"old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


def test_names_cannot_leave_their_folder(tmp_path: Path) -> None:
    shelf = ResultCache(tmp_path / "in", "../out/x")
    assert shelf.report.parent == tmp_path / "in"


def test_fingerprints_tell_types_shapes_and_splits_apart() -> None:
    values = [("ab", "c"), ("a", "bc"), ("abc",), 1, 1.0, "1", None, np.arange(2), np.arange(2.0), np.array([[0, 1]])]
    marks = [fingerprint(value) for value in values]
    assert len(set(marks)) == len(marks)
    assert fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    assert fingerprint(study_of()) == fingerprint(study_of()) != fingerprint(study_of(seed=3))


def test_run_files_hold_the_ranking_that_was_measured(tmp_path: Path) -> None:
    import gzip

    run(tmp_path, [System("tf-idf", ("M01",), "TF-IDF", lexical)])
    lines = gzip.decompress((tmp_path / "out/T0/small/tf-idf.run.gz").read_bytes()).decode().splitlines()
    first = [line.split()[2] for line in lines if line.startswith("0 ")]
    # Without the query itself and the known link 0 -> 2; 1 and 4 by "cat".
    assert sorted(first[:2]) == ["1", "4"] and sorted(first) == ["1", "3", "4", "5"]


def test_progress_names_the_system_and_says_what_was_used_again(tmp_path: Path) -> None:
    said: list[str] = []
    request = TaskRequest(tmp_path, tmp_path / "out")
    systems = [System("random", ("M06",), "U^T V", random_model)]
    for _ in range(2):
        run_ranking(
            "T0", [study_of()], systems, links_loss, links_measure, request, BUDGET, lambda what, *_: said.append(what)
        )
    assert "T0 small: U^T V, drawing" in said and said[-1] == "T0 small: U^T V, used again"


def test_means_and_paired_tests_pool_the_queries_of_all_studies() -> None:
    nan = float("nan")
    values = {
        ("a", "x"): {"AP": np.array([1.0, 0.0, nan])},
        ("b", "x"): {"AP": np.array([0.5])},
        ("a", "y"): {"AP": np.array([0.5, nan, 0.5])},
        ("b", "y"): {"AP": np.array([0.25])},
        ("c", "y"): {"AP": np.array([9.0])},
    }
    results = Results("T0", {"x": "X", "y": "Y"}, values)
    assert results.studies == ("a", "b", "c")
    assert results.mean("x", "AP") == 0.5
    test = results.paired("x", "y", "AP")
    assert (test.n, test.difference) == (2, 0.375)
    assert results.of_study("b").mean("x", "AP") == 0.5
    assert np.isnan(results.of_study("c").mean("x", "AP"))
    with pytest.raises(ConfigError, match="nothing to compare"):
        results.of_study("c").paired("x", "y", "AP")


def test_a_row_whose_training_kept_its_start_says_so_and_is_not_compared_with_itself() -> None:
    values = {("a", name): {"AP": np.array([0.1, 0.2, 0.6])} for name in ("x", "y")}
    values["a", "z"] = {"AP": np.array([0.3, 0.4, 0.6])}
    settings: dict[tuple[str, str], dict[str, float]] = {
        ("a", "y"): {"rate": 0.1, "kept step": 0, "steps": 500},
        ("a", "z"): {"iteration kept": 0},
    }
    results = Results("T0", {"x": "X", "y": "Y", "z": "Z"}, values, settings=settings)
    rows = results.table("t", {}, ("AP",), "x").rows
    assert [row[0] for row in rows] == ["X", "Y (its start, untrained)", "Z (its start, untrained)"]
    assert [bool(row[2]) for row in rows] == [False, False, True], (
        "the start of Z is not X, so a test of it has a sense"
    )
    assert settings_table(results).rows[0][1] == "rate 0.1, kept step 0 (its start, untrained), steps 500"
    (sentence,) = orderings(results, [Claim("y", "x", "SSI")], "AP")
    assert sentence == (
        "Claimed by the paper (SSI): Y above X: not tested here, because no validation was better than the untrained "
        "start of Y."
    )
    moved = replace(results, settings={("a", "y"): {"kept step": 0}, ("b", "y"): {"kept step": 100}})
    assert not moved.kept_start("y") and "not significant here" in orderings(moved, [Claim("y", "x", "SSI")], "AP")[0]


def test_tables_name_the_corpus_and_its_size_as_counted(tmp_path: Path) -> None:
    """Two studies over vocabularies of 2 and of all words: each table names its own, and one of both the range."""
    tokens = [["a", "b", "a"], ["a", "c"], ["b", "a"], ["a", "b", "d", "e"]]

    def study(name: str, n_words: int | None) -> Study:
        texts = study_texts(tokens, study_vocabulary(tokens, n_words))
        pairs, ids = [("d0", "d2"), ("d1", "d2")], [f"d{row}" for row in range(4)]
        task = link_task(pairs, [], ids, ["d0", "d1"])
        trial = StudyTrial(texts.take(np.arange(2)), np.arange(4), task, draw_tuples(task, np.random.default_rng(0), 5))
        empty = sp.csr_matrix(np.zeros((4, 4), dtype=np.float32))
        return Study(name, 0, texts, texts, empty, np.arange(4), trial, trial)

    system = System("plain", (), "Plain", lambda _: Fitted(Bilinear.lexical()))
    request = TaskRequest(tmp_path / "shop", tmp_path / "out")
    studies = [study("limited", 2), study("full", None)]
    results = run_ranking("T0", studies, [system], links_loss, links_measure, request, SMALL, lambda *_: None)
    limited, full = (results.of_study(name).table("t", {}, ["AP"], "plain").note for name in ("limited", "full"))
    assert limited.startswith("shop: 4 documents of 8 words, a vocabulary of 2 words, 2 test queries. ±")
    assert full.startswith("shop: 4 documents of 11 words, a vocabulary of 5 words, 2 test queries. ±")
    assert settings_table(results).note == (
        "shop: 4 documents of 8 to 11 words, a vocabulary of 2 to 5 words, 2 test queries."
    )


def test_the_table_marks_the_papers_figures_and_tests_against_the_reference() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(50)
    values = {("a", "x"): {"AP": base}, ("a", "y"): {"AP": base + 0.1 + 0.01 * rng.random(50)}}
    results = Results("T0", {"x": "X", "y": "Y"}, values, seconds={("a", "x"): 1.25})
    table = results.table("T", {"y": {"AP": "0.5±0.1"}}, ["AP"], "x")
    assert table.columns == ("system", "AP", "p", "AP, paper", "seconds")
    assert table.rows[0][2:] == ("", "", "1.2")
    assert table.rows[1][2] == "< .0001" and table.rows[1][3] == "0.5±0.1"
    assert "other data" in table.note and "against X" in table.note


def test_values_of_the_budget_change_the_tasks_own() -> None:
    own = Budget(n_dims=7, n_steps=123, rates=(0.5,))
    asked = TaskRequest(Path("corpus"), Path("out"), budget={"n_iterations": 12})
    assert with_budget(own, asked) == replace(own, n_iterations=12)
    assert with_budget(own, replace(asked, budget={})) == own
    assert with_budget(own, replace(asked, small=True)) == replace(SMALL, n_iterations=12)


def test_studies_by_size_go_up_to_the_dimensions_asked_for(tmp_path: Path) -> None:
    request = TaskRequest(tmp_path, tmp_path)
    assert sizes(request, (5, 10), (50, 100, 200)) == (50, 100, 200)
    assert sizes(replace(request, small=True), (5, 10), (50, 100, 200)) == (5, 10)
    for asked, expected in ((100, (50, 100)), (70, (50, 70)), (300, (50, 100, 200, 300)), (7, (7,))):
        assert sizes(replace(request, budget={"n_dims": asked}), (5, 10), (50, 100, 200)) == expected
