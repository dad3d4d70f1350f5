"""The stack of docker/: legal for compose and the program, its figures ones that exist; run, where that is asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from reranker.cli.main import main
from reranker.service.settings import ServiceSettings
from tests.engines.policy import do_without, parse_required
from tests.services import client_of, service_over, small_index

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
PLAIN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
SECRETS = {"ELASTIC_PASSWORD": "one", "SSI_ENGINE_PASSWORD": 'tw"o\\', "API_KEYS": "/keys", "METRICS_KEY": "/key"}
STACKS = {
    "elasticsearch": (["compose.yaml"], {}),
    "opensearch": (["compose.yaml"], {"ENGINE": "opensearch"}),
    "secure": (["compose.yaml", "compose.secure.yaml"], SECRETS),
}


def config(files: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return compose's own reading of the files: that of the old program, or of the plugin of Docker."""
    program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if (
        shutil.which(program[0]) is None
        or subprocess.run([*program, "version"], capture_output=True, check=False).returncode
    ):
        do_without("docker-compose", "apt-get install docker-compose (it needs no Docker engine)")
    arguments = [argument for file in files for argument in ("-f", file)]
    return subprocess.run(
        [*program, *arguments, "config"], cwd=DOCKER, env=PLAIN | variables, capture_output=True, text=True, check=False
    )


@cache
def services(stack: str) -> dict[str, dict[str, Any]]:
    """Return the services, by name."""
    result = config(*STACKS[stack])
    assert result.returncode == 0, result.stderr
    by_name: dict[str, dict[str, Any]] = yaml.safe_load(result.stdout)["services"]
    return by_name


def engine_of(stack: str) -> str:
    """Return which engine a stack brings up."""
    return "opensearch" if stack == "opensearch" else "elasticsearch"


@pytest.mark.parametrize("stack", STACKS)
def test_the_stack_is_legal_and_starts_what_it_says(stack: str) -> None:
    parts = services(stack)
    assert set(parts) - {"user"} == {"engine", "corpus", "service", "prometheus", "grafana"}
    assert ("user" in parts) == (stack == "secure")
    assert engine_of(stack) in parts["engine"]["image"]


@pytest.mark.parametrize("stack", STACKS)
def test_ports_are_the_loopbacks_and_images_are_pinned(stack: str) -> None:
    for name, service in services(stack).items():
        # One string of Compose 1, an object of Compose 2.
        hosts = [
            port.get("host_ip") if isinstance(port, dict) else port.split(":")[0] for port in service.get("ports", ())
        ]
        assert set(hosts) <= {"127.0.0.1"}, name
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
            assert context.params["engine_spec"] == f"{engine_of(stack)}:http://engine:9200"
            # Of each engine its own: one model cannot be of two indexes.
            folder = Path("/data") / engine_of(stack)
            assert folder in (context.params.get("folder"), getattr(context.params.get("model_path"), "parent", None))


@pytest.mark.parametrize("missing", SECRETS)
def test_the_secure_stack_has_no_default_secret(missing: str) -> None:
    files, variables = STACKS["secure"]
    result = config(files, {name: value for name, value in variables.items() if name != missing})
    assert result.returncode != 0
    assert f"set {missing}" in result.stderr
    assert not re.search(r"(?im)^ +\w*(password|secret)\w*: *['\"]?\w", (DOCKER / "compose.yaml").read_text())


@pytest.mark.parametrize("stack", STACKS)
def test_the_engine_needs_no_right_to_lock_memory_and_stops_last(stack: str) -> None:
    parts = services(stack)
    assert "ulimits" not in parts["engine"]
    for name in ("corpus", "service"):
        assert parts[name]["depends_on"]["engine"]["condition"] == "service_healthy"
    # What is in work, the connections, and what waits to be written: less than Docker gives it.
    grace_s = float(str(parts["service"]["stop_grace_period"]).removesuffix("s"))
    assert grace_s >= ServiceSettings("demo").drain_s + 5


def test_the_project_has_a_name_of_its_own_and_one_part_builds_the_image() -> None:
    assert re.search(r"^COMPOSE_PROJECT_NAME=ssi-reranker$", (DOCKER / ".env").read_text(), re.MULTILINE)
    assert [name for name, service in services("elasticsearch").items() if "build" in service] == ["corpus"]


def test_the_secure_stack_makes_the_user_of_the_others(tmp_path: Path) -> None:
    user = services("secure")["user"]
    curl = tmp_path / "curl"
    curl.write_text(f"#!/bin/sh\nfor last; do :; done\ncat >{tmp_path}/$(basename $last)\n")
    curl.chmod(0o755)
    script = user["command"][0].replace("$$", "$")
    environment = {**user["environment"], "PATH": f"{tmp_path}:{PLAIN['PATH']}"}
    subprocess.run([*user["entrypoint"], script], env=environment, check=True)
    role, made = (json.loads((tmp_path / name).read_text()) for name in ("ssi_stack", "ssi"))
    assert made == {"password": SECRETS["SSI_ENGINE_PASSWORD"], "roles": ["ssi_stack"]}
    assert {"demo*", "ssi-control", "ubi_*"} == set(role["indices"][0]["names"])
    assert services("secure")["corpus"]["depends_on"]["user"]["condition"] == "service_completed_successfully"


def test_the_secure_stack_reads_keys_from_files_that_must_be_there() -> None:
    parts = services("secure")
    targets = {name: [secret["target"] for secret in parts[name]["secrets"]] for name in ("service", "prometheus")}
    assert targets == {"service": ["/run/keys.txt"], "prometheus": ["/run/metrics-key.txt"]}
    assert parts["service"]["restart"] == "on-failure:3"
    plain, secure = (yaml.safe_load((DOCKER / f"prometheus{part}.yml").read_text()) for part in ("", ".secure"))
    (job,) = secure["scrape_configs"]
    assert job.pop("authorization") == {"type": "Bearer", "credentials_file": "/run/metrics-key.txt"}
    assert secure == plain
    assert "prometheus.secure.yml" in str(parts["prometheus"]["volumes"])
    assert "prometheus.yml:/" not in str(parts["prometheus"]["volumes"])


def test_the_image_runs_unprivileged_and_copies_what_there_is() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert [one for one in copied if not (ROOT / one).exists()] == []
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sent) == sorted(copied)


def test_a_changed_line_of_the_program_leaves_the_stage_of_its_dependencies() -> None:
    dependencies, program, image = (DOCKER / "Dockerfile").read_text().split("\nFROM ")[1:]
    assert re.findall(r"^COPY (.*)$", dependencies, re.MULTILINE) == ["pyproject.toml constraints.txt ./"]
    assert "constraints.txt ." in dependencies and "--no-deps" in program
    assert re.findall(r"^COPY --from=(\w+)", image, re.MULTILINE) == ["dependencies", "program"]


def test_every_figure_of_the_dashboard_is_there_before_it_first_grows(tmp_path: Path) -> None:
    client = client_of(service_over(small_index(tmp_path / "index", n=5), tmp_path))
    client.get("/metrics")
    shown = [line.partition(" ")[0] for line in client.get("/metrics").text.splitlines()]
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "ssi.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [match for text in expressions for match in re.findall(r"\b(ssi_\w+)(?:{(.*?)})?", text)]
    assert len(expressions) == 18 and len(asked) >= 18
    for name, labels in asked:
        assert any(re.match(rf"{name}(\W|$)", series) and labels in series for series in shown), (name, labels)


def test_the_tile_of_the_served_version_is_one() -> None:
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "ssi.json").read_text())
    # "/.*/" would make a tile of the time too; numbers alone are chosen by "".
    assert {
        panel["options"]["reduceOptions"]["fields"] for panel in dashboard["panels"] if panel["type"] == "stat"
    } == {""}


@pytest.mark.timeout(3600)
def test_the_stack_runs() -> None:
    if "docker" not in parse_required(os.environ.get("SSI_REQUIRE", "")):
        do_without("docker", "SSI_REQUIRE=docker runs docker/try.sh (a quarter of an hour, with a Docker engine)")
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([DOCKER / "try.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
