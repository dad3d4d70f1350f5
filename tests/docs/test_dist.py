"""What `make dist` builds holds the program and its licence, and works from an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_and_the_source_archive_have_the_program_and_the_demo_runs_from_it(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    tracked, source = listed.rstrip("\0").split("\0"), tmp_path / "source"
    for name in tracked:
        if not name.startswith(("tests/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path, source], check=True, capture_output=True)
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    program = {name for name in tracked if name.startswith(("reranker/", "indexer/", "papers/", "plugin_scripts/"))}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(archive) as opened:
        in_archive = {name.partition("/")[2] for name in opened.getnames()}
    assert program - in_wheel == set() and program - in_archive == set()
    assert {"LICENSE", "NOTICE"} <= in_archive & {Path(name).name for name in in_wheel}
    assert not any(name.startswith("tests/") for name in in_wheel)

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    environment |= {"HOME": str(tmp_path / "home"), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    pip, constraints = tmp_path / "env" / "bin" / "pip", ROOT / "constraints.txt"
    subprocess.run([pip, "install", "-q", "-c", constraints, wheel], check=True)
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "ssi", "demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "MAP" in done.stdout
