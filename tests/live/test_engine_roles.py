"""Least privilege on a real Elasticsearch: what each role may do, and how a refusal looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.base import Engine
from reranker.errors import EngineAuthError, EngineError
from tests.engines.launcher import EngineProcess
from tests.engines.recipes import EngineKind
from tests.engines.security import FileUser, Security

ROLES: dict[str, dict[str, Any]] = {
    "serve": {"indices": [{"names": ["docs"], "privileges": ["read", "view_index_metadata"]}]},
    "index": {"indices": [{"names": ["docs"], "privileges": ["read", "write", "view_index_metadata", "maintenance"]}]},
    "blind": {"indices": [{"names": ["docs"], "privileges": ["write"]}]},
}


def _written(engine: Engine) -> None:
    (result,) = engine.bulk("docs", [WriteOp("index", "b", {"t": "x"})])
    if result.status == 403:
        raise EngineAuthError(result.reason, status=403)
    assert result.status in (200, 201)


CALLS: dict[str, Callable[[Engine], object]] = {
    "search": lambda engine: engine.search("docs", {"query": {"match": {"t": "x"}}}),
    "get": lambda engine: engine.get("docs", ["a"]),
    "scan": lambda engine: list(engine.scan("docs")),
    "count": lambda engine: engine.count("docs"),
    "index_info": lambda engine: engine.index_info("docs"),
    "bulk": _written,
    "refresh": lambda engine: engine.refresh("docs"),
    "put_properties": lambda engine: engine.put_properties("docs", {"new": {"type": "keyword"}}),
    "create_index": lambda engine: engine.create_index("other", {}),
    "swap_alias": lambda engine: engine.swap_alias("live", "docs"),
}
ALLOWED = {
    "serve": {"search", "get", "scan", "count", "index_info"},
    # Elasticsearch 8 lets ``write`` change an index's mapping, with a deprecation warning.
    "index": {"search", "get", "scan", "count", "index_info", "bulk", "refresh", "put_properties"},
    "blind": {"bulk"},
}
SECRET = "canary-of-the-role"


@pytest.fixture(scope="module")
def secured(launchable: Callable[[EngineKind], None]) -> Iterator[str]:
    """Give the address of an Elasticsearch with these roles and one index of one document."""
    launchable("elasticsearch")
    users = {name: FileUser(SECRET, (name,)) for name in ROLES}
    with EngineProcess("elasticsearch", heap="512m", security=Security(users=users, roles=ROLES)) as process:
        admin = open_engine(f"elasticsearch:{process.url}", EngineSettings(user="elastic", password="engine-tests"))
        admin.create_index("docs", {"properties": {"t": {"type": "text"}}}, {"number_of_replicas": 0})
        admin.bulk("docs", [WriteOp("index", "a", {"t": "x"})])
        admin.refresh("docs")
        yield process.url
        admin.close()


def _engine(url: str, user: str, password: str = SECRET) -> Engine:
    return open_engine(f"elasticsearch:{url}", EngineSettings(user=user, password=password))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("call", CALLS)
def test_a_role_may_do_its_work_and_no_more(role: str, call: str, secured: str) -> None:
    engine = _engine(secured, role)
    if call in ALLOWED[role]:
        CALLS[call](engine)
        return
    with pytest.raises(EngineAuthError, match=r"unauthorized|security_exception") as caught:
        CALLS[call](engine)
    assert caught.value.status == 403
    assert SECRET not in str(caught.value)


def test_a_role_without_the_cluster_has_cautious_capabilities(secured: str) -> None:
    able = _engine(secured, "serve").capabilities()
    assert (able.kind, able.version, able.painless) == ("elasticsearch", "", False)


@pytest.mark.parametrize(("user", "password"), [("serve", "wrong"), ("nobody", SECRET)])
def test_wrong_credentials_stop_at_once(user: str, password: str, secured: str) -> None:
    engine = _engine(secured, user, password)
    for call in CALLS.values():
        started = time.monotonic()
        with pytest.raises(EngineAuthError, match="SSI_ENGINE_PASSWORD") as caught:
            call(engine)
        assert time.monotonic() - started < 2
        assert caught.value.status == 401
        assert password not in str(caught.value)


def test_no_credentials(secured: str) -> None:
    engine = open_engine(f"elasticsearch:{secured}", EngineSettings())
    with pytest.raises(EngineError) as caught:
        engine.search("docs", {})
    assert type(caught.value) is EngineAuthError
