"""Folders that cannot be written: what only reads works in them, what writes says so and leaves them as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from tests.engines.policy import do_without
from tests.live.service_process import ServiceProcess
from tests.unit.clicks.reading import event, query, write_lines
from tests.unit.rerank.test_commands import Site, ids


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Hold a folder that not even root can write: a bind mount of itself, read-only."""
    for command in (["mount", "--bind"], ["mount", "-o", "remount,ro,bind"]):
        done = subprocess.run([*command, str(folder), str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)
            do_without("mount", f"the right to mount folders ({done.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ssi(*words: object) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    if os.geteuid() != 0:
        do_without("mount", "root, for read-only mounts")
    site = Site(tmp_path_factory.mktemp("site"))
    site.json("search", "word3")
    return site


@pytest.fixture
def closed(site: Site) -> Iterator[Site]:
    """Give the site with a read-only model folder."""
    with read_only(site.path / "model"):
        yield site


def test_an_embedded_index_that_cannot_be_written_is_refused_with_what_to_do(site: Site) -> None:
    with read_only(site.path):
        result = site.run("search", "word3")
    assert result.exit_code == 4 and "fix the permissions of the folder" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_searches_need_no_model_folder_to_write(closed: Site, route: str) -> None:
    answer = closed.json("search", "word3 word11", "--route", route)
    assert answer["reranked"] and not answer["fallback"] and len(ids(answer)) == 10


def test_a_service_needs_no_model_folder_to_write(closed: Site) -> None:
    site = closed
    options = ("--engine", f"tantivy:{site.path / 'index'}", "--index", "docs", "--model", str(site.path / "model"))
    with ServiceProcess(*options, "--route", "beside", "--sink", "none") as service:
        status, answer = service.ask("POST", "/search", {"query": "word3 word11"}, timeout=30)
        assert status == 200 and answer["reranked"] and not answer["fallback"]


def test_what_cannot_be_written_is_said_and_nothing_is_left(site: Site, tmp_path: Path) -> None:
    before, raw = contents(site.path), write_lines(tmp_path / "raw.ndjson", [query(), event()])
    here = site.path
    commands = {
        "train": (
            "train",
            "--docs",
            here / "docs.jsonl",
            "--links",
            here / "links.tsv",
            "--fields",
            "text",
            "--model",
            here / "new",
        ),
        "import": ("clicks", "import", raw, "--log", here / "clicks"),
        "index": (
            "index",
            here / "docs.jsonl",
            "--engine",
            f"tantivy:{here / 'index'}",
            "--index",
            "docs",
            "--model",
            here / "model",
        ),
    }
    for name, words in commands.items():
        with read_only(here):
            result = ssi(*words)
        said = " ".join(result.output.split())
        assert result.exit_code not in (0, 1, 2), (name, result.exit_code, said, result.exception)
        assert "Traceback" not in said, (name, said)
        assert any(word in said.lower() for word in ("read-only", "cannot be written", "fix the permissions")), (
            name,
            said,
        )
        assert contents(here) == before, name
