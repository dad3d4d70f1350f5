"""Engines from the official Docker images, by testcontainers, on machines with a Docker engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tests.engines.recipes import ELASTICSEARCH_VERSION, OPENSEARCH_VERSION, EngineKind

_DOCKER_LIMIT_S = 5
_HEAP = "-Xms768m -Xmx768m"


def docker_ready() -> bool:
    """Say whether testcontainers is installed and a Docker engine answers within five seconds."""
    if find_spec("testcontainers") is None or shutil.which("docker") is None:
        return False
    command = ["docker", "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOCKER_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


@contextmanager
def container(kind: EngineKind) -> Iterator[str]:
    """Run the official image of an engine and give its address; remove the container at the end."""
    if kind == "elasticsearch":
        from testcontainers.elasticsearch import ElasticSearchContainer

        engine = ElasticSearchContainer(f"elasticsearch:{ELASTICSEARCH_VERSION}", mem_limit="2g")
        engine.with_env("ES_JAVA_OPTS", _HEAP).with_env("xpack.security.enabled", "false")
    else:
        from testcontainers.opensearch import OpenSearchContainer

        engine = OpenSearchContainer(f"opensearchproject/opensearch:{OPENSEARCH_VERSION}", mem_limit="2g")
        engine.with_env("OPENSEARCH_JAVA_OPTS", _HEAP)
    with engine:
        yield f"http://{engine.get_container_host_ip()}:{engine.get_exposed_port(9200)}"
