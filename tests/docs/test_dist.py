"""`make dist` builds the same bytes twice: the program with its licence, which works from an empty environment."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.docs.licences import pins
from tests.docs.release import build, reduced, same_archive, sbom, sums
from tests.engines.policy import library

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_767_225_600
"""The first second of 2026."""


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    built = []
    for number, umask in enumerate((0o022, 0o077)):
        (tmp_path / str(number)).mkdir()
        before = os.umask(umask)
        try:
            built.append(build(tmp_path / str(number), EPOCH))
        finally:
            os.umask(before)
    first, second = built
    assert [path.name for path in first] == [path.name for path in second] and len(first) == 2
    assert sums(first) == sums(second)
    with tarfile.open(next(path for path in first if path.suffix == ".gz")) as opened:
        about = {(one.mtime, one.uid, one.uname, one.mode & 0o022) for one in opened.getmembers()}
    assert about == {(EPOCH, 0, "", 0)}


def test_an_archive_keeps_its_content_and_loses_times_and_owners(tmp_path: Path) -> None:
    archives = []
    for order in (("a", "b"), ("b", "a")):
        for name in order:
            (tmp_path / name).write_text(f"text of {name}")
        with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as opened:
            for name in order:
                opened.add(tmp_path / name, name)
        archives.append(same_archive((tmp_path / "archive.tar.gz").read_bytes(), EPOCH))
    assert archives[0] == archives[1]
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as opened:
        content = {one.name: opened.extractfile(one) for one in opened.getmembers()}
        assert {name: file.read() for name, file in content.items() if file} == {"a": b"text of a", "b": b"text of b"}


def test_the_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"abc")
    text = sums([tmp_path / "b", tmp_path / "a"])
    assert [line.split() for line in text.splitlines()] == [
        ["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "a"],
        ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "b"],
    ]


def test_an_inventory_is_reduced_to_some_packages() -> None:
    names = ("numpy", "pytest", "rerankers")
    components = [{"name": name, "bom-ref": f"{name}==1"} for name in names]
    needs = [{"ref": "root", "dependsOn": ["numpy==1", "pytest==1"]}, {"ref": "numpy==1"}, {"ref": "pytest==1"}]
    bom = {"metadata": {"component": {"bom-ref": "root"}}, "components": components, "dependencies": needs}
    found = reduced(bom, {"numpy", "rerankers"})
    assert found["dependencies"] == [{"ref": "root", "dependsOn": ["numpy==1"]}, {"ref": "numpy==1"}]
    assert [one["name"] for one in found["components"]] == ["numpy", "rerankers"]
    assert found["components"][1]["licenses"] == [{"license": {"name": "Apache-2.0"}}]


@pytest.mark.slow
def test_the_inventory_names_the_pinned_packages_of_the_program_with_their_licences() -> None:
    library("cyclonedx_py")
    text = sbom(EPOCH)
    assert text == sbom(EPOCH)
    found = json.loads(text)
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "ssi-reranker")
    assert found["metadata"]["timestamp"].startswith("2026-01-01T00:00:00")
    named = {canonicalize_name(one["name"]): one for one in found["components"]}
    assert {"numpy", "llvmlite", "onnxruntime"} <= named.keys() and "pytest" not in named
    assert [name for name, one in named.items() if not one["licenses"]] == []
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    assert {name: one["version"] for name, one in named.items()} == {name: versions[name] for name in named}
    assert str(Path.home()).encode() not in text and str(ROOT).encode() not in text


@pytest.mark.slow
def test_the_wheel_and_the_source_archive_have_the_program_and_the_demo_runs_from_it(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    build(tmp_path, EPOCH)
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    parts = ("reranker/", "indexer/", "papers/", "plugin_scripts/")
    program = {name for name in listed.rstrip("\0").split("\0") if name.startswith(parts)}
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
