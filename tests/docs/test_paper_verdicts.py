"""The claims of the papers on the page of their systems: every verdict that a run printed, and those of its tables."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from papers import registry
from papers.claims import CLAIMS
from papers.graded_systems import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
RUNS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "reproduced.json").read_text("utf-8"))["runs"]


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("paper_verdicts")


def a_run(*tables: dict[str, Any], sentences: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a kept run."""
    return {"sections": [{"sentences": sentences, "tables": list(tables)}]}


def of_systems(*rows: tuple[str, ...], reference: str) -> dict[str, Any]:
    """Return a table with AP, rank loss and their tests against a reference."""
    note = f"p is of the paired t-test against {reference}. Figures under “paper” are the paper's own."
    columns = ["system", "rank loss", "p", "AP", "p"]
    return {"title": "", "columns": columns, "rows": [list(row) for row in rows], "note": note}


def test_every_claim_names_systems_that_exist() -> None:
    for task, claims in CLAIMS.items():
        assert registry.task(task)
        names = {name for claim in claims for name in (claim.better, claim.worse)}
        assert names <= {*registry.systems(), *BY_NAME}


def test_every_verdict_that_a_run_printed_is_on_the_page() -> None:
    sentences = [said for run in RUNS.values() for section in run["sections"] for said in section["sentences"]]
    printed = [said for said in sentences if "laimed" in said]
    assert len(printed) >= 60
    assert not [said for said in printed if f"- {said}" not in PAGE]


def test_verdicts_of_tables_are_by_their_tests_or_say_that_there_is_none(verdicts: ModuleType) -> None:
    tf_idf = ("TFIDF, texts translated (IBM 1)", "4.6 ± 0.2 %", "", "0.139 ± 0.007", "")
    psi = ("PSI, texts translated", "2.1 ± 0.1 %", "< .0001", "0.120 ± 0.009", ".0020")
    cl_lsi = ("CL-LSI", "3.2 ± 0.2 %", "< .0001", "0.160 ± 0.008", ".0300")
    across = ("PSI across languages", "3.3 ± 0.2 %", "< .0001", "0.334 ± 0.010", "< .0001")
    run = a_run(of_systems(tf_idf, psi, cl_lsi, across, reference=tf_idf[0]))
    rows = {row.claim: row for row in verdicts.claim_rows({"T4": run}) if row.run == "T4"}
    assert rows["PSI, texts translated above TFIDF, texts translated (IBM 1)"].verdict == (
        "reversed in AP (0.120 against 0.139, p = .0020); holds in rank loss (2.1 % against 4.6 %, p < .0001)"
    )
    assert rows["PSI, texts translated above TFIDF, texts translated (IBM 1)"].cause == "cause unknown"
    lexical = rows["TFIDF, texts translated (IBM 1) above CL-LSI"].verdict
    assert lexical.startswith("not significant in AP") and "; reversed in rank loss" in lexical
    assert rows["PSI across languages above CL-LSI"].verdict == (
        "no test kept in AP (0.334 against 0.160; in the claimed order); "
        "no test kept in rank loss (3.3 % against 3.2 %; reversed in the means)"
    )
    assert rows["PSI across + PSI of translated texts above PSI across languages"].verdict == "not measured"


def test_a_claim_on_an_untrained_system_is_not_tested(verdicts: ModuleType) -> None:
    names = ("CL-LSI", "OPCA", "S2Net from OPCA")
    systems = {"title": "", "note": "", "columns": ["system", "MRR"], "rows": [[name, "0.9 ± 0.1"] for name in names]}
    chosen = {"title": "", "note": "", "columns": ["system", "settings"]}
    kept = {**chosen, "rows": [["S2Net from OPCA", "start opca, iteration kept 0, gamma 10"]]}
    trained = {**chosen, "rows": [["S2Net from OPCA", "start opca, iteration kept 10, gamma 10"]]}
    found = [
        {row.claim: row.verdict for row in verdicts.claim_rows({"T6": a_run(systems, settings)})}
        for settings in (kept, trained)
    ]
    assert found[0]["S2Net from OPCA above OPCA"] == "not tested"
    assert found[1]["S2Net from OPCA above OPCA"].startswith("no test kept in MRR")


def test_reversed_claims_are_on_the_page() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and " above " in line]
    here = {(row[0].removeprefix("| "), row[2]): row[3] for row in rows if len(row) > 3}
    assert here["UᵀV above TF-IDF", "T8 trec_session_2013"].startswith("reversed in rank loss")
    assert here["PSI from CL-LSI above CL-LSI", "T6"].startswith("reversed in top-1")
    assert "reversed in AP, one way" in here["PSI k = 3 above UᵀV + I (PSI k = 2)", "T3a"]
    assert "holds" not in here["UᵀV + I (PSI k = 2) above hash kernels, H", "T1b"]
    mixed = here["PSI across + TFIDF of translated texts above PSI across languages", "T4"]
    assert mixed.startswith("no test kept in AP") and "reversed in the means" in mixed
