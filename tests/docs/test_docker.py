"""The stack of docker/: legal for docker-compose, its commands legal for the program, its figures ones that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from reranker.cli.main import main
from reranker.service.telemetry import Metrics
from tests.engines.policy import do_without

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
PLAIN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
SECRETS = {"ELASTIC_PASSWORD": "one", "SSI_ENGINE_PASSWORD": "two", "API_KEYS": "/keys.txt"}
STACKS = {
    "elasticsearch": (["compose.yaml"], {}),
    "opensearch": (["compose.yaml"], {"ENGINE": "opensearch", "COMPOSE_PROFILES": "opensearch"}),
    "secure": (["compose.yaml", "compose.secure.yaml"], SECRETS),
}


def config(files: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return docker-compose's own reading of the files."""
    program = shutil.which("docker-compose")
    if program is None:
        do_without("docker-compose", "apt-get install docker-compose (it needs no Docker engine)")
    arguments = [argument for file in files for argument in ("-f", file)]
    return subprocess.run(
        [program, *arguments, "config"], cwd=DOCKER, env=PLAIN | variables, capture_output=True, text=True, check=False
    )


@cache
def services(stack: str) -> dict[str, dict[str, Any]]:
    """Return the services that come up, by name."""
    result = config(*STACKS[stack])
    assert result.returncode == 0, result.stderr
    found: dict[str, dict[str, Any]] = yaml.safe_load(result.stdout)["services"]
    active = {"opensearch" if stack == "opensearch" else "elasticsearch"}
    return {name: one for name, one in found.items() if not one.get("profiles") or active & set(one["profiles"])}


@pytest.mark.parametrize("stack", STACKS)
def test_the_stack_is_legal_and_starts_what_it_says(stack: str) -> None:
    engine = "opensearch" if stack == "opensearch" else "elasticsearch"
    assert set(services(stack)) == {engine, "corpus", "service", "prometheus", "grafana"}


@pytest.mark.parametrize("stack", STACKS)
def test_ports_are_the_loopbacks_and_images_are_pinned(stack: str) -> None:
    for name, service in services(stack).items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["cap_drop"] == ["ALL"]
        assert not service.get("privileged")


@pytest.mark.parametrize("stack", STACKS)
def test_the_commands_are_ones_that_the_program_takes(stack: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("")
    for name, service in services(stack).items():
        if service["image"].startswith("ssi-reranker"):
            command, *arguments = service["command"]
            arguments = [str(keys) if one == "/run/keys.txt" else one for one in arguments]
            group = click.Context(main)
            found = main.get_command(group, command)
            assert found is not None, name
            context = found.make_context(command, arguments, parent=group)
            engine = "opensearch" if stack == "opensearch" else "elasticsearch"
            assert context.params["engine_spec"] == f"{engine}:http://engine-{engine}:9200"


@pytest.mark.parametrize("missing", SECRETS)
def test_the_secure_stack_has_no_default_secret(missing: str) -> None:
    files, variables = STACKS["secure"]
    result = config(files, {name: value for name, value in variables.items() if name != missing})
    assert result.returncode != 0
    assert f"set {missing}" in result.stderr
    assert not re.search(r"(?im)^ +\w*(password|secret)\w*: *['\"]?\w", (DOCKER / "compose.yaml").read_text())


def test_the_image_runs_unprivileged_and_copies_what_there_is() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["ssi"]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert [one for one in copied if not (ROOT / one).exists()] == []
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sent) == sorted(copied)


def test_the_dashboard_asks_for_figures_that_exist() -> None:
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "ssi.json").read_text())
    metrics = Metrics()
    for name in ("ssi_waiting", "ssi_busy", "ssi_breaker_open", "ssi_sink_waiting", "ssi_sink_dropped"):
        metrics.watch(name, "", lambda: 0.0)
    known = {
        name
        for family in metrics.registry.collect()
        for name in (family.name, f"{family.name}_total", f"{family.name}_bucket")
    }
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bssi_\w+", target["expr"])
    }
    assert asked
    assert asked <= known
