"""Tables of the papers' systems on the page: the papers' own figures in the right rows."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from papers.retrieval_tasks import PRINTED, PRINTED_NOTES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "figures" / "papers.md").read_text(encoding="utf-8")
RUNS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "reproduced.json").read_text("utf-8"))["runs"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("paper_tables")


def test_figures_of_the_papers_are_those_of_the_registry(tables: ModuleType) -> None:
    kept = RUNS["T1b"]["sections"][0]["tables"][0]
    known = tables.as_known("T1b", kept)
    row = next(row for row in known["rows"] if row[0] == "hash kernels, H")
    assert row[known["columns"].index("AP, paper")] == PRINTED["T1b"]["hash-kernels-3m"]["AP"] == "0.485 ± 0.011"
    row = next(row for row in known["rows"] if row[0] == "UᵀV + I (PSI k = 2)")
    assert row[known["columns"].index("AP, paper")] == ""
    assert known["note"].endswith(PRINTED_NOTES["T1b"])
    assert tables.as_known("T1b", known) == known
    measured = [at for at, name in enumerate(kept["columns"]) if not name.endswith(", paper")]
    assert [[row[at] for at in measured] for row in known["rows"]] == [
        [row[at] for at in measured] for row in kept["rows"]
    ]


def test_figures_of_ssi_are_those_with_as_many_dimensions() -> None:
    assert PRINTED["T3b"]["utv-plus-i"] == {"rank loss": "2.93 %", "AP": "0.235", "P@10": "0.102"}
    line = next(line for line in PAGE.splitlines() if line.startswith("| UᵀV + I (PSI k = 2)") and "2.93 %" in line)
    assert " 0.235 " in line and " 0.102 " in line
    assert PRINTED["T1b"]["lsi-tf-idf"]["P@10"] == "0.193 ± 0.007"


def test_every_note_on_the_figures_of_the_papers_is_on_the_page() -> None:
    assert all(note in PAGE for note in PRINTED_NOTES.values())


def test_systems_that_kept_their_start_are_marked_in_every_row(tables: ModuleType) -> None:
    notes = tables.notes_of("T6", RUNS["T6"])
    of_opca = "its start, untrained: OPCA at 500 dimensions"
    assert notes == dict.fromkeys(("S2Net from OPCA", "S2Net, squared loss", "S2Net, pulled to its start"), of_opca)
    of_run = PAGE.partition("\n**T6.** ")[2].partition("**T6: Chosen on validation.**")[0]
    for name in notes:
        assert len(re.findall(rf"\| {re.escape(name)} \|", of_run)) == 0
        assert f"| {name} ({of_opca}) | 0.958" in of_run
    assert "| S2Net from PCA | 0.972" in of_run
    assert set(tables.notes_of("T1a", RUNS["T1a"])) == {"diag(w)"}


def test_a_model_that_equals_its_start_is_marked(tables: ModuleType) -> None:
    run = RUNS["T12-T7 esci_sample"]
    said = "equal to PCA, its untrained start, at 300 and 500 dimensions"
    assert tables.notes_of("T12-T7", run) == {"S2Net": said}
    assert PAGE.count(f"| S2Net ({said}) | ") == len(run["sections"][0]["tables"])
    assert tables.equal_columns(run, "S2Net", "OPCA") == []
