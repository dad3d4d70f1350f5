"""The study of learning on every corpus, on a cut of two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from generalisation_data import learning_from, read_corpus

ROOT = Path(__file__).resolve().parents[2]


def study(ssi_data: Path, file: Path, *options: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, str(ROOT / "benchmarks" / "generalisation.py"), "--small", "--json", str(file), *options]
    variables = {**os.environ, "SSI_DATA": str(ssi_data), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.live
def test_a_small_study_has_its_rows_and_goes_on_where_it_stopped(ssi_data: Path, tmp_path: Path) -> None:
    options = ("--corpora", "cppdocs,nfcorpus", "--rows", "words5,whole,unseen", "--peers", "joint-bm25,bm25+queries")
    shown, kept = study(ssi_data, tmp_path / "study.json", *options)
    rows = [(row["corpus"], row["key"]) for row in kept["rows"]]
    assert rows == [("cppdocs", "words5"), ("cppdocs", "unseen"), ("nfcorpus", "whole"), ("nfcorpus", "unseen")]
    for row in kept["rows"]:
        remembered = {"bm25+queries"} if row["corpus"] == "nfcorpus" else set()
        assert set(row["against"]) == {"tfidf", "bm25", "peer joint-bm25", "peer bm25+queries"} | remembered
        report = row["test"]
        assert row["model"] == report["systems"]["model"]["AP"]
        if "bm25" in report["tests"]:  # the difference from the run files is that of the command
            test = report["tests"]["bm25"]["AP"]
            assert row["against"]["bm25"]["difference"] == pytest.approx(test["difference"], abs=1e-9)
            assert row["against"]["bm25"]["p"] == pytest.approx(test["p_t_test"])
        assert row["train_s"] > 0 and row["peak_mb"] > 50
    again, same = study(ssi_data, tmp_path / "study.json", *options)
    assert same["rows"] == kept["rows"] and same["peers"] == kept["peers"]
    assert again.startswith("corpus")  # nothing was run
    assert shown.endswith(again)


def test_few_queries_are_learned_from_and_the_others_are_not_asked(ssi_data: Path, tmp_path: Path) -> None:
    options = ("--corpora", "nfcorpus", "--rows", "whole", "--peers", "", "--learn", "30")
    _, kept = study(ssi_data, tmp_path / "study.json", *options)
    (row,) = kept["rows"]
    assert (row["corpus"], row["measure"]) == ("nfcorpus-30", "AP")
    whole = read_corpus(ssi_data / "nfcorpus", tmp_path, small=True)
    few = learning_from(whole, 30).splits["whole"]
    assert row["training"]["summary"].startswith(f"Trained on {sum(map(len, few.learn.values())):,} preferences")
    assert few.test == whole.splits["whole"].test
    assert few.learn.items() <= whole.splits["whole"].learn.items()
    assert {**few.fit, **few.valid} == few.learn and len(few.valid) == 6
