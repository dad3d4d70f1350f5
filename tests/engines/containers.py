"""Engines from the official Docker images, by testcontainers, on machines with a Docker engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tests.engines.recipes import EngineKind, recipe_of

_DOCKER_LIMIT_S = 5
_PULL_LIMIT_S = 600
_IMAGES: dict[EngineKind, str] = {"elasticsearch": "elasticsearch", "opensearch": "opensearchproject/opensearch"}
_HEAP = "-Xms768m -Xmx768m"


def _image(kind: EngineKind) -> str:
    return f"{_IMAGES[kind]}:{recipe_of(kind).distribution.version}"


def docker_ready(kind: EngineKind) -> bool:
    """Say whether testcontainers is installed and a Docker engine answers that has the image, or can pull it."""
    if find_spec("testcontainers") is None or shutil.which("docker") is None:
        return False
    # An engine may answer where no registry does.
    return _done("info", "--format", "{{.ServerVersion}}", limit_s=_DOCKER_LIMIT_S) and (
        _done("image", "inspect", "--format", "{{.Id}}", _image(kind), limit_s=_DOCKER_LIMIT_S)
        or _done("pull", "--quiet", _image(kind), limit_s=_PULL_LIMIT_S)
    )


def _done(*arguments: str, limit_s: float) -> bool:
    """Say whether a command of Docker succeeds, and prints something, in time."""
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


@contextmanager
def container(kind: EngineKind) -> Iterator[str]:
    """Run the official image of an engine and give its address; remove the container at the end."""
    if kind == "elasticsearch":
        from testcontainers.elasticsearch import ElasticSearchContainer

        engine = ElasticSearchContainer(_image(kind), mem_limit="2g")
        engine.with_env("ES_JAVA_OPTS", _HEAP).with_env("xpack.security.enabled", "false")
    else:
        from testcontainers.opensearch import OpenSearchContainer

        engine = OpenSearchContainer(_image(kind), mem_limit="2g")
        engine.with_env("OPENSEARCH_JAVA_OPTS", _HEAP)
    with engine:
        yield f"http://{engine.get_container_host_ip()}:{engine.get_exposed_port(9200)}"
