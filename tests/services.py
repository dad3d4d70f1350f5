"""A service over a small index, in process: what the tests of the service share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from reranker.engines.protocol import Engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import Release, update_control
from reranker.rerank import RerankSettings
from reranker.service.app import ServicePart, create_app
from reranker.service.serving import GoldenQuery, Watcher
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
    settings.setdefault("body", TEMPLATE)
    route = settings.get("route", "fetch")
    return open_state(
        served.engine,
        ServiceSettings(index=served.index, **settings),
        model=path / "model",
        store=served.store_path if route == "beside" else None,
        sink=sink,
    )


def client_of(state: ServiceState, *parts: ServicePart) -> TestClient:
    """Return a client that speaks to the application in process."""
    app = create_app(state.settings, state, parts)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def sibling(served: Served, seed: int) -> RankingModel:
    """Return a model with the same encoder and another U."""
    model = served.model
    U = model_of(served.documents, seed=seed).U
    return RankingModel(encoder=model.encoder, query_vocabulary=model.query_vocabulary, U=U, identity=1.0)


def promote(served: Served, model_id: str, calibration: dict[str, Any] | None = None) -> None:
    encoder_id = served.model.encoder_id
    update_control(
        served.engine,
        served.index,
        lambda record: record.with_release(Release(model_id, encoder_id, calibration or {})).with_live(model_id),
    )


class Site:
    """A service over a folder of two models, the first of them live, looked after by hand."""

    def __init__(self, served: Served, path: Path, golden: list[GoldenQuery] | None = None, **settings: Any) -> None:
        self.served, self.models = served, path / "models"
        self.first, self.second = served.model, sibling(served, 7)
        settings.setdefault("rerank", PATIENT)
        settings.setdefault("body", TEMPLATE)
        save_model(self.first, self.models / "first")
        save_model(self.second, self.models / "second")
        promote(served, self.first.model_id)
        self.state: ServiceState = open_state(
            served.engine,
            ServiceSettings(index=served.index, **settings),
            models=self.models,
            golden=golden,
            store=served.store_path if settings.get("route") == "beside" else None,
        )
        assert self.state.watcher is not None
        self.watcher: Watcher = self.state.watcher

    @property
    def live(self) -> str:
        """The version that answers, by an answer."""
        answer = client_of(self.state).post("/search", json={"query": "word3"}).json()
        assert answer["reranked"], answer
        return str(answer["model_id"])

    def swaps(self, result: str) -> float:
        """Return the figure of swaps."""
        value = self.state.metrics.registry.get_sample_value("ssi_swaps_total", {"result": result})
        return value or 0.0
