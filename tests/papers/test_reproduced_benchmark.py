"""``benchmarks/reproduced.py``: runs are kept as they are printed, and what is there is gathered."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from papers import registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_small_run_is_kept_with_its_p_values_and_gathered(ssi_data: Path, tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "reproduced.py"), "--small", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "SSI_DATA": str(ssi_data)}
    results = tmp_path / "reproduced.json"
    earlier = {"command": "ssi reproduce T8", "sections": []}
    about = {"program": "0123456789ab", "date": "2026-01-02"}
    runs = {"T8 trec_session_2013": earlier, "T5": {**earlier, "command": "ssi reproduce T5"}}
    results.write_text(json.dumps({"about": about, "runs": runs}), encoding="utf-8")
    for more in (["--only", "T9"], ["--only", "none", "--json", str(results)]):
        subprocess.run([*program, *more], check=True, env=environment, stderr=subprocess.DEVNULL)
    content = json.loads(results.read_text(encoding="utf-8"))
    assert list(content["runs"]) == ["T9", "T8 trec_session_2013", "T5"], (
        "T5 stays until T5 with several seeds is there"
    )
    kept = {**earlier, "version": "0123456789ab", "date": "2026-01-02"}
    assert content["runs"]["T8 trec_session_2013"] == kept, "an earlier run keeps its program and day"
    assert content["runs"]["T9"]["version"] == content["about"]["program"] != "0123456789ab"
    assert content["runs"]["T9"]["command"] == "ssi reproduce T9 --steps 500000 --rates 0.1"
    loss = content["runs"]["T9"]["sections"][0]["tables"][0]
    assert "seconds" not in loss["columns"]
    assert [row[0] for row in loss["rows"]] == ["TF-IDF", "UᵀV + I (PSI k = 2)", "p against TF-IDF"]
    assert all(loss["rows"][2])


def test_every_task_has_a_run_or_a_place_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("reproduced")
    ran = {benchmark.task_of(run) for run in benchmark.RUNS}
    assert ran | set(benchmark.IN_OTHER_RUNS) == set(registry.tasks())
    assert not ran & set(benchmark.IN_OTHER_RUNS)
    for run in benchmark.RUNS:
        corpus = benchmark.option(run, "--corpus", benchmark.DEFAULT_CORPUS)
        assert corpus in registry.task(benchmark.task_of(run)).corpora, run
        names = benchmark.option(run, "--systems", "")
        assert registry.chosen([name for name in names.split(",") if name], ["tf-idf"]), run
        if "--corpus" not in run:
            assert registry.task(benchmark.task_of(run)).corpora[0] == benchmark.DEFAULT_CORPUS


def test_the_papers_own_systems_are_in_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("reproduced")
    runs = {benchmark.heading(run): run for run in benchmark.RUNS}
    assert len(runs) == len(benchmark.RUNS)
    systems = {name: set(run.split("--systems ")[1].split(",")) for name, run in runs.items() if "--systems" in run}
    assert {"mates-s2net", "psi-cross", "psi-cross-cl-lsi"} <= systems["T5 3 seeds"]
    assert {"graded-s2net", "graded-s2net-pseudo", "graded-ssi"} <= systems["T7a esci_sample"]
    assert {"margin-ranking-perceptron", "utv-plus-i"} <= systems["T1a 2 seeds"] & systems["T1a full W"]
    assert {"utu-plus-i", "utv-plus-i", "psi-3"} <= systems["T1a"] & systems["T1a 3 seeds"]
    assert {"graded-s2net", "graded-opca"} <= systems["T7b-judged cisi"] & systems["T7b-judged cranfield"]
