"""Sentences on the page of the papers' systems: differences from the papers, systems not measured, T2, two BM25s."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from papers import registry
from papers.corpora import ANALYZER, TITLE_TIMES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
RUNS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "reproduced.json").read_text("utf-8"))["runs"]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("paper_notes")


def after(text: str) -> str:
    """Return the rest of the paragraph of the page after a text."""
    return PAGE.partition(text)[2].partition("\n\n")[0]


def test_the_differences_from_the_papers_are_those_of_the_program(notes: ModuleType) -> None:
    said = after("**How this differs from the papers.** ")
    assert said and said in notes.differences(RUNS)
    assert f"counts {TITLE_TIMES} times" in said and ("stop=english" in ANALYZER) == ("stop words are removed" in said)
    for figure in ("N is 100", "38,159", "30,000", "n = 12,719", "7,479 documents", "29,845 training links"):
        assert figure in said
    assert all(len(registry.task(task).corpora) for task in ("T1a", "T1b"))


def test_models_that_were_best_at_their_last_step_are_counted(notes: ModuleType) -> None:
    rows = [
        ["a", "rate 0.1, kept step 500, steps 500, most steps 500"],
        ["b", "rate 0.1, kept step 400, steps 500, most steps 500"],
        ["c", "k1 4"],
    ]
    run = {"sections": [{"tables": [{"title": "Chosen on validation", "rows": rows}]}]}
    assert notes.last_steps({"T1a": run}) == (1, 2)


def test_systems_that_no_run_measured_are_listed(notes: ModuleType) -> None:
    listed = after("**Not measured.** ").partition(": ")[2].partition(". `ssi")[0].split(", ")
    assert {"zero-diagonal", "hash-kernels-1m", "hash-kernels-6m", "psi-4", "plsa", "graded-listnet"} <= set(listed)
    assert not {"utv-plus-i", "bm25", "mates-s2net", "graded-ssi", "psi-cross"} & set(listed)
    run = {"command": "ssi reproduce T1a --systems zero-diagonal,psi-4"}
    said = notes.never_measured({**RUNS, "T1a more": run}, {})
    assert "zero-diagonal" not in said and "psi-4" not in said and "hash-kernels-1m" in said


def test_the_reversal_on_unseen_documents_stands_with_its_table() -> None:
    of_run = PAGE.partition("\n**T2.** ")[2].partition("\n**T2: ")[0]
    assert "has AP 0.252 ± 0.009 against 0.443 ± 0.011 of TF-IDF" in of_run
    assert "AP 0.503 ± 0.010 against 0.506 ± 0.012" in of_run


def test_the_two_bm25s_are_explained_next_to_t1a() -> None:
    of_run = PAGE.partition("\n**T1a.** ")[2].partition("\n**T1a: ")[0]
    assert "BM25 has AP 0.279 ± 0.010 here and 0.44 in" in of_run
    assert f"the title {TITLE_TIMES} times" in of_run
    assert (ROOT / "docs" / "figures" / "learning.md").is_file()


def test_full_w_stands_next_to_t1a_with_all_its_seeds(notes: ModuleType) -> None:
    of_run = PAGE.partition("\n**T1a.** ")[2].partition("\n**T1a: ")[0]
    assert "full W has AP 0.452 ± 0.011 against 0.409 ± 0.011, and rank loss 0.361 ± 0.046 % against" in of_run
    assert "In the mean over 3 seeds" in of_run and "above with 3 of them" in of_run and "still improving" in of_run
    assert PAGE.index("**T1a full W.**") < PAGE.index("**T1a 2 seeds.**")


def test_a_run_of_one_seed_says_nothing_of_others(notes: ModuleType) -> None:
    run = RUNS["T1a full W"]
    tables = [one for one in run["sections"][0]["tables"] if "over seeds" not in one["title"]]
    said = notes.full_w({"sections": [{**run["sections"][0], "tables": tables}]})
    assert "with seed 0." in said and "seeds" not in said
