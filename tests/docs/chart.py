"""The parts of the Helm chart that are derived from the program, and the helm that renders it.

``python -m tests.docs.chart`` writes both derived parts: the settings in ``values.schema.json`` from the options of the
commands, and the table of values in ``docs/guide/kubernetes.md`` from the comments in ``values.yaml``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import yaml  # type: ignore[import-untyped, unused-ignore]
from filelock import FileLock

from reranker.cli.common import option_key, options_of
from reranker.cli.main import main
from tests.engines.assembly import cache_folder
from tests.engines.policy import do_without

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "docker" / "chart"
GUIDE = ROOT / "docs" / "guide" / "kubernetes.md"
SCHEMA = CHART / "values.schema.json"
HELM = "v3.18.4"
"""Version of helm that is built if none is installed."""
KUBERNETES = "v0.33.2"
"""Version of the types of Kubernetes (1.33) by which manifests are checked."""
MANIFESTS = Path(__file__).with_name("manifests") / "main.go"
START, END = "<!-- values: made by python -m tests.docs.chart -->\n", "<!-- end of values -->\n"

COMMANDS: Final = {"serve": "serve", "sync": "sync", "import": "clicks import", "retrain": "retrain"}
"""Key of ``settings`` → command."""
OF_THE_CHART: Final = {
    "serve": {
        *("engine", "index", "model", "models", "body", "named_body", "host", "port", "api_keys", "without_keys"),
        "new_key",
        # Files and folders that the chart does not mount, and TLS, which ends at the Ingress.
        *("store", "golden", "tls_cert", "tls_key"),
        # Probes and Prometheus request a pod by its address.
        "allowed_host",
    },
    "sync": {"engine", "index", "model", "write_store", "rejects", "dry_run", "follow", "interval"},
    "import": {"engine", "log", "format", "until", "key", "rejects"},
    "retrain": {
        *("engine", "index", "clicks", "models", "warm_start", "report", "body", "dry_run"),
        *("links", "qrels", "query_file", "propensities", "write_store", "allow_partial"),
    },
}
"""Key of ``settings`` → options that the chart gives itself, or that have no meaning in it."""
NO_ROUTE = "beside"
"""Route that the chart does not support: its store is a file of each machine."""
ENGINE_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "connect_timeout_s": {"type": "number", "exclusiveMinimum": 0},
    "read_timeout_s": {"type": "number", "exclusiveMinimum": 0},
    "verify": {"type": "boolean"},
    "aws_region": {"type": "string"},
    "aws_service": {"enum": ["es", "aoss"]},
}
"""Keys of the table ``[engine]`` that are no secrets and no files."""


def command_of(name: str) -> click.Command:
    """Return a command by its name, such as ``clicks import``."""
    found: click.Command | None = None
    for word in name.split():
        group = main if found is None else found
        assert isinstance(group, click.Group)
        found = group.get_command(click.Context(group), word)
    assert found is not None, name
    return found


def options_by_key(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their keys in the configuration file, without former names."""
    return {option_key(one): one for one in options_of(command) if not one.hidden}


def schema_of_option(option: click.Option) -> dict[str, Any]:
    """Return the JSON schema of the values of an option."""
    kind: dict[str, Any] = {"type": "string", "minLength": 1}
    if isinstance(option.type, click.Choice):
        kind = {"enum": [choice for choice in option.type.choices if choice != NO_ROUTE]}
    elif option.is_flag:
        kind = {"type": "boolean"}
    elif isinstance(option.type, click.IntRange | click.FloatRange):
        kind = {"type": "integer" if isinstance(option.type, click.IntRange) else "number"}
        for name, bound, is_open in (
            ("inimum", option.type.min, option.type.min_open),
            ("aximum", option.type.max, option.type.max_open),
        ):
            if bound is not None:
                kind[f"exclusiveM{name}" if is_open else f"m{name}"] = bound
    if option_key(option) == "sink":
        kind = {"enum": ["engine", "none"]}  # a file of a pod is lost with it
    return {"type": "array", "items": kind} if option.multiple else kind


def schema_of_settings() -> dict[str, Any]:
    """Return the JSON schema of ``settings``: every option that the chart leaves to its user."""
    tables = {
        key: {
            option: schema_of_option(found)
            for option, found in options_by_key(command_of(name)).items()
            if option not in OF_THE_CHART[key]
        }
        for key, name in COMMANDS.items()
    }
    tables["engine"] = dict(ENGINE_SETTINGS)
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            key: {"type": "object", "additionalProperties": False, "properties": table} for key, table in tables.items()
        },
    }


def schema() -> str:
    """Return ``values.schema.json`` with the settings of the present program."""
    written = json.loads(SCHEMA.read_text(encoding="utf-8"))
    written["properties"]["settings"] = schema_of_settings()
    return json.dumps(written, indent=2) + "\n"


def values() -> Iterator[tuple[str, str, Any]]:
    """Yield (path, comment, default) of every value with a comment in ``values.yaml``."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        match = re.match(r"( *)(#|[A-Za-z]\w*:)(.*)", line)
        if match is None:
            comment = []
        elif match[2] == "#":
            comment.append(match[3].strip())
        else:
            parents = [*parents[: len(match[1]) // 2], match[2][:-1]]
            if comment:
                value = defaults
                for name in parents:
                    value = value[name]
                yield ".".join(parents), " ".join(comment), value
            comment = []


def undocumented() -> list[str]:
    """Return the paths of values that have no comment, neither their own nor that of a table that contains them."""
    known = {path for path, _, _ in values()}

    def leaves(value: Any, path: str) -> Iterator[str]:
        if path in known:
            return
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from leaves(inner, f"{path}.{name}" if path else name)
        else:
            yield path

    return list(leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), ""))


def table() -> str:
    """Return the table of values for the guide."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, comment, default in values():
        shown = f"`{json.dumps(default)}`" if default not in ("", {}, []) else ""
        lines.append(f"| `{path}` | {shown} | {comment} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def guide() -> str:
    """Return the guide with the table of the present values."""
    text = GUIDE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{table()}\n{END}\n{rest.partition(END)[2].lstrip()}"


LONGEST_STEP_S: Final = 900.0
"""Seconds that one step of a build may take."""


def helm_program() -> str:
    """Return the installed helm, or one that Go builds once in the cache folder of the tests.

    Skips the test, or fails it, if there is neither helm nor Go, or the modules are unavailable (`do_without`).
    """
    return shutil.which("helm") or _built("helm", HELM, [["go", "install", f"helm.sh/helm/v3/cmd/helm@{HELM}"]])


def manifest_checker() -> str:
    """Return the program of ``manifests/main.go``, which Go builds once in the cache folder; else as `helm_program`."""
    modules = [f"k8s.io/client-go/kubernetes/scheme@{KUBERNETES}", f"k8s.io/apimachinery@{KUBERNETES}"]
    steps = [["go", "mod", "init", "manifests"], ["go", "get", *modules], ["go", "install", "."]]
    source = hashlib.sha256(MANIFESTS.read_bytes()).hexdigest()[:12]
    return _built("manifests", f"{KUBERNETES}-{source}", steps)


def _built(name: str, version: str, steps: list[list[str]]) -> str:
    """Return a program of the cache folder; if it is missing, run the steps that build it in a temporary folder."""
    program = cache_folder() / f"{name}-{version}" / name
    if program.is_file():
        return str(program)
    if shutil.which("go") is None:
        do_without("helm", "install helm, and Go, by which the tests build what checks its output")
    program.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(program.with_name("lock")), tempfile.TemporaryDirectory() as folder:
        shutil.copy(MANIFESTS, folder)
        environment = os.environ | {"GOBIN": str(program.parent)}
        for step in () if program.is_file() else steps:
            try:
                subprocess.run(
                    step, cwd=folder, env=environment, capture_output=True, check=True, timeout=LONGEST_STEP_S
                )
            except subprocess.SubprocessError as error:  # it failed, or the modules did not come
                do_without("helm", f"{' '.join(step)}: {error}")
    return str(program)


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
    GUIDE.write_text(guide(), encoding="utf-8")
