"""The files of the Helm chart agree with the program and the documentation, and its scripts work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from indexer.checkpoint import state_dir
from reranker.cli.common import EXIT_CODES
from reranker.config import ROUTES
from reranker.engines import EngineSettings
from tests.docs import chart
from tests.unit.rerank.test_commands import Site


def test_the_schema_has_the_options_of_the_program() -> None:
    assert chart.SCHEMA.read_text("utf-8") == chart.schema(), "run  python -m tests.docs.chart"
    assert set(chart.ENGINE_SETTINGS) < set(EngineSettings.keys())
    routes = chart.schema_of_settings()["properties"]["serve"]["properties"]["route"]["enum"]
    assert set(routes) == set(ROUTES) - {chart.NO_ROUTE}


@pytest.mark.parametrize("key", chart.COMMANDS)
def test_the_options_of_the_chart_are_ones_of_the_program(key: str) -> None:
    known = chart.options_by_key(chart.command_of(chart.COMMANDS[key]))
    assert chart.OF_THE_CHART[key] <= known.keys()


def test_every_value_is_documented() -> None:
    assert chart.undocumented() == []
    assert chart.GUIDE.read_text("utf-8") == chart.guide(), "run  python -m tests.docs.chart"


def test_the_schema_has_exactly_the_values() -> None:
    properties = json.loads(chart.SCHEMA.read_text("utf-8"))["properties"]
    for path, _, _ in chart.values():
        found = {"properties": properties}
        for name in path.split("."):
            found = found["properties"][name]
    defaults = yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8"))
    assert properties.keys() - {"global"} == defaults.keys()
    for name, value in properties.items():
        if value.get("additionalProperties") is False:
            assert value["properties"].keys() == defaults[name].keys(), name


def test_the_chart_has_the_version_of_the_program_and_accepts_statuses_that_it_has() -> None:
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((chart.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert described["appVersion"] == project["version"]
    accepted = yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8"))["retrain"]["acceptedStatuses"]
    assert set(accepted) <= set(EXIT_CODES)


def test_the_image_has_the_user_and_the_folders_of_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    dockerfile = (chart.ROOT / "docker" / "Dockerfile").read_text("utf-8")
    helpers = (chart.CHART / "templates" / "_helpers.tpl").read_text("utf-8")
    # Kubernetes can verify that a user is not root only if it is a number.
    assert re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE) == ["10001:10001"]
    assert "--uid 10001" in dockerfile and "runAsUser: 10001" in helpers
    assert "WORKDIR /data" in dockerfile and "workingDir: /data" in helpers
    assert "NUMBA_CACHE_DIR=/data/.numba" in dockerfile and "NUMBA_CACHE_DIR, value: /data/.numba" in helpers
    monkeypatch.setenv("SSI_STATE_DIR", "/data/.state")
    assert state_dir() == Path("/data/.state")


def shims(folder: Path, ssi: str) -> dict[str, str]:
    """Return an environment in which ``ssi`` is a shell script of this text, and ``python`` this Python."""
    for name, text in (("ssi", ssi), ("python", f'exec {sys.executable} "$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(chart.ROOT)}


@pytest.mark.parametrize(("accepted", "status", "expected"), [("7 8 9", 7, 0), ("8", 7, 7), ("", 0, 0), ("7", 17, 17)])
def test_accepted_statuses_are_a_success(accepted: str, status: int, expected: int, tmp_path: Path) -> None:
    environment = shims(tmp_path, f'echo "$#:$1"; exit {status}')
    command = ["sh", str(chart.CHART / "files" / "accept.sh"), accepted, "a b", "c"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (expected, "2:a b\n")


@pytest.mark.slow
def test_the_live_version_is_synchronised(tmp_path: Path) -> None:
    site = Site(tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "model").rename(models / "any name")
    (tmp_path / "ssi.toml").write_text(f'[default]\nengine = "tantivy:{tmp_path}/index"\nindex = "docs"\n')
    script = (chart.CHART / "files" / "sync.sh").read_text("utf-8")
    for there, here in (("/etc/ssi/ssi.toml", "ssi.toml"), ("/tmp/", f"{tmp_path}/"), ("/models", str(models))):  # noqa: S108
        script = script.replace(there, here)
    script = script.replace("/etc/ssi/", f"{chart.CHART}/files/")

    def run() -> subprocess.CompletedProcess[str]:
        environment = shims(tmp_path, 'exec python -m reranker "$@"')
        command = ["sh", "-c", script, "sync.sh", "--config", "ssi.toml", "sync"]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 0, done.stderr
    assert f"{len(site.documents)} documents read" in done.stdout
    (models / "any name").rename(tmp_path / "gone")
    done = run()
    assert done.returncode == 1
    assert "no folder in" in done.stderr
