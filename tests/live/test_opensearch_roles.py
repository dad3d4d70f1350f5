"""Least privilege on a real OpenSearch with its security plugin: the roles of docs/reference.md, command by command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from reranker.engines import EngineSettings, open_engine
from reranker.engines.protocol import Engine, requests_of
from reranker.errors import EngineError
from tests.engines import rerank_pipeline
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.security import DEMO_ADMIN, Security
from tests.live.helpers import ROOT
from tests.live.service_process import ServiceProcess
from tests.live.test_engine_roles import OURS, READING, WRITING, commands_of, fill_site

PASSWORD = "Canary-Of-7-Roles!"
METADATA = [
    "indices:admin/get",
    "indices:admin/mappings/get",
    "indices:admin/aliases/get",
    "indices:admin/resolve/index",
    "indices:monitor/settings/get",
]
READS = {"index_patterns": OURS, "allowed_actions": ["read", *METADATA]}
ML = "cluster:admin/opensearch/ml/"
PREDICT = f"{ML}predict"
INSTALL = [
    "cluster:monitor/state",
    "cluster:admin/settings/update",
    "cluster:admin/search/pipeline/put",
    "cluster:admin/search/pipeline/delete",
    f"{ML}create_connector",
    f"{ML}register_model",
    f"{ML}models/get",
    f"{ML}models/delete",
    f"{ML}undeploy_model",
    f"{ML}undeploy_models",
    f"{ML}connectors/delete",
    PREDICT,
]
READ_CLUSTER = ["cluster_composite_ops_ro", "cluster:monitor/nodes/info"]
ROLES: dict[str, dict[str, Any]] = {
    "searcher": {"cluster_permissions": READ_CLUSTER, "index_permissions": [READS]},
    "predictor": {"cluster_permissions": [*READ_CLUSTER, PREDICT], "index_permissions": [READS]},
    "operator": {
        "cluster_permissions": ["cluster_composite_ops", "cluster_monitor"],
        "index_permissions": [{"index_patterns": OURS, "allowed_actions": ["read", "write", "manage"]}],
    },
    "installer": {"cluster_permissions": [*INSTALL]},
}


@pytest.fixture(scope="module")
def secured(reranking_launchable: None) -> Iterator[EngineProcess]:
    """Give an OpenSearch with these roles, each with a user of its name."""
    security = Security(password=PASSWORD)
    with EngineProcess("opensearch", heap="768m", java_options=QUICK_START, rerank=True, security=security) as process:
        yield process


@pytest.fixture(scope="module")
def authority(secured: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "authority.pem"
    path.write_text(secured.authority, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def admin(secured: EngineProcess, authority: Path) -> Iterator[Engine]:
    settings = EngineSettings(user=DEMO_ADMIN, password=PASSWORD, ca_file=str(authority))
    engine = open_engine(f"opensearch:{secured.url}", settings)
    for name, role in ROLES.items():
        for kind, body in (
            ("roles", role),
            ("internalusers", {"password": PASSWORD}),
            ("rolesmapping", {"users": [name]}),
        ):
            requests_of(engine).request("PUT", f"/_plugins/_security/api/{kind}/{name}", body)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def site(admin: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    fill_site(path, admin)
    return path


@pytest.fixture
def typed(
    site: Path, secured: EngineProcess, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Give a function that types a command as a user of the engine, in the folder."""
    monkeypatch.chdir(site)
    monkeypatch.setenv("SSI_STATE_DIR", str(site / "state"))
    run = commands_of(f"opensearch:{secured.url}", site, authority)
    return lambda user, command: run(user, command, PASSWORD)


def test_the_reference_names_these_rights() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = {*INSTALL, *READ_CLUSTER, *METADATA, "cluster_composite_ops", "cluster_monitor"}
    assert {one for one in named if f"`{one}`" not in text and f"`{one.removeprefix(ML)}`" not in text} == set()


def test_a_searcher_reads_and_an_operator_writes(typed: Callable[..., Result], admin: Engine) -> None:
    for command in (["index", "docs.jsonl", "--model", "model"], WRITING["revectorize"], WRITING["promote"]):
        made = typed("operator", command)
        assert made.exit_code == 0, made.output
    for name, command in READING.items():
        result = typed("searcher", command)
        assert result.exit_code == (3 if name == "interleave report" else 0), (name, result.output)
    for name, command in WRITING.items():
        result = typed("searcher", command)
        assert result.exit_code == 4, (name, result.output)
        # A bulk request as a whole is answered 200, and each document 403.
        assert "403" in result.output and "security_exception" in result.output, (name, result.output)
    for name, command in WRITING.items():
        result = typed("operator", command)
        assert result.exit_code == 0, (name, result.output)


def _engine_of(url: str, authority: Path, user: str) -> Engine:
    return open_engine(f"opensearch:{url}", EngineSettings(user=user, password=PASSWORD, ca_file=str(authority)))


def _scores(url: str, authority: Path, user: str, body: dict[str, Any]) -> list[float]:
    engine = _engine_of(url, authority, user)
    found = requests_of(engine).request("POST", "/shop-pairs/_search", body)
    engine.close()
    return [hit["_score"] for hit in found["hits"]["hits"]]


def test_rights_of_the_rerank_pipeline(
    site: Path, admin: Engine, secured: EngineProcess, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = {"properties": {"title": {"type": "text"}}}
    requests = requests_of(admin)
    requests.request("PUT", "/shop-pairs", {"mappings": documents})
    for place, title in enumerate(["word1", "word1 word2 word3", "word1 word2"]):
        requests.request("PUT", f"/shop-pairs/_doc/{place}", {"title": title}, {"refresh": "true"})
    monkeypatch.setenv("SSI_ENGINE_USER", DEMO_ADMIN)
    monkeypatch.setenv("SSI_ENGINE_PASSWORD", PASSWORD)
    monkeypatch.setenv("SSI_ENGINE_CA_FILE", str(authority))
    served = ["--engine", f"opensearch:{secured.url}", "--index", "shop-pairs", "--model", str(site / "model")]
    installer, searcher = (_engine_of(secured.url, authority, user) for user in ("installer", "searcher"))
    with ServiceProcess(*served, "--deadline-ms", "20000") as service:
        address = f"http://127.0.0.1:{service.port}"
        with pytest.raises(EngineError, match="403"):
            rerank_pipeline.install(requests_of(searcher).request, address, "title")
        body = {
            "query": {"match": {"title": "word1"}},
            "search_pipeline": "ssi",
            "ext": {"rerank": {"query_context": {"query_text": "word1 word2"}}},
        }
        with rerank_pipeline.installed(requests_of(installer).request, address, "title"):
            shown = {"include_defaults": "true", "flat_settings": "true"}
            settings = requests_of(installer).request("GET", "/_cluster/settings", params=shown)
            assert settings["persistent"][rerank_pipeline.TRUSTED] == [f"^http://127[.]0[.]0[.]1:{service.port}/.*$"]
            scores = {user: _scores(secured.url, authority, user, body) for user in ("searcher", "predictor")}
            plain = _scores(secured.url, authority, "searcher", {"query": body["query"]})
        # OpenSearch tells nobody that the searcher may not ask the service.
        assert scores["searcher"] == plain != scores["predictor"]
    installer.close()
    searcher.close()
