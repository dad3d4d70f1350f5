"""Two at once: the second is refused; a killed one does not stay in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reranker.errors import GateRefused
from reranker.releases import ControlRecord
from reranker.retrain.loop import only_one, still_live, work_folder

HOLD = """
import sys, time
from pathlib import Path
from reranker.retrain.loop import only_one
with only_one(Path(sys.argv[1]), "docs"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(GateRefused, match="another `ssi retrain` of index 'docs'"), only_one(tmp_path, "docs"):
            pass
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    with only_one(tmp_path, "docs"):
        pass


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError), only_one(tmp_path / "new", "docs"):
        raise ValueError
    with only_one(tmp_path / "new", "docs"):
        pass


def test_each_index_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = {
        work_folder(tmp_path, spec, index)
        for spec in ("elasticsearch:http://a:9200", "opensearch:http://a:9200")
        for index in ("docs", "shop")
    }
    assert len(folders) == 4
    assert all(folder.is_relative_to(tmp_path / ".retrain") for folder in folders)
    assert work_folder(tmp_path, "tantivy:x", "docs") == work_folder(tmp_path, "tantivy:./x", "docs")


@pytest.mark.parametrize(("expected", "live"), [(None, "a" * 64), ("a" * 64, None), ("a" * 64, "b" * 64)])
def test_another_live_version_stops_a_promotion(expected: str | None, live: str | None) -> None:
    with pytest.raises(GateRefused, match="nothing was promoted"):
        still_live(expected)(ControlRecord("docs", live=live))


def test_the_same_live_version_lets_it_pass() -> None:
    records = {live: ControlRecord("docs", live=live) for live in ("a" * 64, "b" * 64, None)}

    def passes(expected: str | None, live: str | None) -> bool:
        try:
            still_live(expected)(records[live])
        except GateRefused:
            return False
        return True

    passed = {(expected, live) for expected in records for live in records if passes(expected, live)}
    assert passed == {(live, live) for live in records}
