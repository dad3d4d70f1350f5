"""A service over a small index, in process: what the tests of the service share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from reranker.artifacts import save_model
from reranker.engines.base import Engine
from reranker.rerank import RerankSettings
from reranker.service.app import Part, create_app
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState, open_state
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve

PATIENT = RerankSettings(deadline_ms=20_000.0)
"""For tests of anything but deadlines: on a busy machine a second is soon over."""
TEMPLATE = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}}


def small_index(path: Path, engine: Engine | None = None, n: int = 80, index: str = "docs") -> Served:
    """Return an index of random documents with the vectors of a model, in the memory engine unless told otherwise."""
    documents = random_documents(n)
    return serve(engine or memory_engine(), index, path, documents, model_of(documents))


def service_over(served: Served, path: Path, *, sink: Any = None, **settings: Any) -> ServiceState:
    """Return the state of a service over an index, with its model saved in ``path``."""
    save_model(served.model, path / "model")
    settings.setdefault("rerank", PATIENT)
    route = settings.get("route", "fetch")
    return open_state(
        served.engine,
        ServiceSettings(index=served.index, **settings),
        model=path / "model",
        store=served.store_path if route == "beside" else None,
        sink=sink,
    )


def client_of(state: ServiceState, *parts: Part) -> TestClient:
    """Return a client that speaks to the application in process."""
    return TestClient(create_app(state.settings, state, parts), raise_server_exceptions=False)
