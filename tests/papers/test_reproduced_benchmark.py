"""``benchmarks/reproduced.py``: runs are kept as they are printed, and what is there is gathered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_small_run_is_kept_with_its_p_values_and_gathered(ssi_data: Path, tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "reproduced.py"), "--small", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "SSI_DATA": str(ssi_data)}
    results = tmp_path / "reproduced.json"
    earlier = {"command": "ssi reproduce T8", "sections": []}
    results.write_text(json.dumps({"about": {}, "runs": {"T8 trec_session_2013": earlier}}), encoding="utf-8")
    for more in (["--only", "T9"], ["--only", "none", "--json", str(results)]):
        subprocess.run([*program, *more], check=True, env=environment, stderr=subprocess.DEVNULL)
    content = json.loads(results.read_text(encoding="utf-8"))
    assert list(content["runs"]) == ["T9", "T8 trec_session_2013"]
    assert content["runs"]["T8 trec_session_2013"] == earlier
    assert content["runs"]["T9"]["command"] == "ssi reproduce T9 --steps 500000"
    loss = content["runs"]["T9"]["sections"][0]["tables"][0]
    assert "seconds" not in loss["columns"]
    assert [row[0] for row in loss["rows"]] == ["TF-IDF", "UᵀV + I (PSI k = 2)", "p against TF-IDF"]
    assert all(loss["rows"][2])
