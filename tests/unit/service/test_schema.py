"""The OpenAPI description is kept: requests made from it, and beside it, get no 5xx and no undocumented answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.policy import library

schemathesis = library("schemathesis")

from hypothesis import HealthCheck, given, seed, settings  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from reranker.service.app import all_parts, create_app  # noqa: E402
from reranker.service.sink import open_sink  # noqa: E402
from tests.engines.memory import memory_engine  # noqa: E402
from tests.services import service_over, small_index  # noqa: E402

OPERATIONS = (
    "search",
    "health",
    "ready",
    "metrics",
    "versions",
    "reload",
    "rerank_v1",
    "rerank_v2",
    "rerank_texts",
    "rerank_root",
    "info",
    "embed",
    "events",
    "status",
)
CASES_EACH = max(1, int(os.environ.get("SSI_SCHEMA_CASES", "500")) // (2 * len(OPERATIONS)))


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("service")
    served = small_index(path, memory_engine(), n=20)
    sink = open_sink(str(path / "ubi.ndjson"), served.engine)
    state = service_over(served, path, sink=sink, allowed_hosts=("testserver", "localhost"))
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(state.settings, state, all_parts()))
    state.close()


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_every_answer_is_as_described(description: Any, operation_id: str, mode: str) -> None:
    operation = description.find_operation_by_id(operation_id)
    if mode == "NEGATIVE" and not operation.body and not operation.query and not operation.headers:
        return  # nothing of such a request can be wrong
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])
    seed_value = int(os.environ.get("SEED", "20100"))

    @seed(seed_value)
    @settings(max_examples=CASES_EACH, suppress_health_check=list(HealthCheck), database=None)
    @given(case=strategy)
    def check(case: Any) -> None:
        # Which bodies the service has, no JSON Schema can say.
        case.call_and_validate(excluded_checks=[positive_data_acceptance] if operation_id == "search" else None)

    check()


def test_the_description_names_every_route_once(tmp_path: Path) -> None:
    served = small_index(tmp_path, memory_engine(), n=5)
    state = service_over(served, tmp_path)
    described = create_app(state.settings, state, all_parts()).openapi()
    names = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert sorted(names) == sorted(OPERATIONS), "each route has a name, and is among those tried above"
    assert {"/search", "/health", "/ready", "/metrics", "/versions", "/admin/reload"} <= set(described["paths"])
