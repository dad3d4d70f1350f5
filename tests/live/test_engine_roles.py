"""Least privilege on a real Elasticsearch over TLS: what each role may do, and how a refusal looks."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli import search
from reranker.cli.main import main
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine, requests_of
from reranker.errors import EngineAuthError, EngineError, EngineRejected
from reranker.models.model_folder import save_model
from reranker.service.sink import EVENTS_INDEX, QUERIES_INDEX
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.policy import do_without
from tests.engines.recipes import EngineKind
from tests.engines.security import FileUser, Security, sign_certificate
from tests.live.helpers import contents, write_lines
from tests.live.service_process import ServiceProcess
from tests.served import model_of, random_documents
from tests.unit.clicks.reading import event, query
from tests.unit.retrain.shop import Shop

OURS = ["shop", "shop-*", "ssi-control", "ubi_*"]
ROLES: dict[str, dict[str, Any]] = {
    "serve": {"indices": [{"names": ["docs"], "privileges": ["read", "view_index_metadata"]}]},
    "index": {"indices": [{"names": ["docs"], "privileges": ["read", "write", "view_index_metadata", "maintenance"]}]},
    "blind": {"indices": [{"names": ["docs"], "privileges": ["write"]}]},
    # Of those who type commands: as docs/reference.md has them.
    "searcher": {"indices": [{"names": OURS, "privileges": ["read", "view_index_metadata"]}]},
    "operator": {
        "cluster": ["monitor"],
        "indices": [{"names": OURS, "privileges": ["read", "write", "manage"]}],
    },
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
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the place of the certificate that signs the engine's."""
    return tmp_path_factory.mktemp("tls") / "authority.pem"


@pytest.fixture(scope="module")
def secured(launchable: Callable[[EngineKind], None], authority: Path) -> Iterator[str]:
    """Give the address of an Elasticsearch with these roles and one index of one document."""
    launchable("elasticsearch")
    if shutil.which("openssl") is None:
        do_without("openssl", "it makes the certificate")
    users = {name: FileUser(SECRET, (name,)) for name in ROLES}
    certificate = sign_certificate()
    authority.write_text(certificate.authority, encoding="utf-8")
    security = Security(users=users, roles=ROLES, certificate=certificate)
    with EngineProcess("elasticsearch", heap="512m", java_options=QUICK_START, security=security) as process:
        admin = _engine(process.url, authority, "elastic", security.password)
        admin.create_index("docs", {"properties": {"t": {"type": "text"}}}, {"number_of_replicas": 0})
        admin.bulk("docs", [WriteOp("index", "a", {"t": "x"})])
        admin.refresh("docs")
        yield process.url
        admin.close()


def _engine(url: str, authority: Path, user: str, password: str = SECRET) -> Engine:
    return open_engine(f"elasticsearch:{url}", EngineSettings(user=user, password=password, ca_file=str(authority)))


@pytest.mark.parametrize("role", ALLOWED)
@pytest.mark.parametrize("call", CALLS)
def test_a_role_may_do_its_work_and_no_more(role: str, call: str, secured: str, authority: Path) -> None:
    engine = _engine(secured, authority, role)
    if call in ALLOWED[role]:
        CALLS[call](engine)
        return
    with pytest.raises(EngineAuthError, match=r"unauthorized|security_exception") as caught:
        CALLS[call](engine)
    assert caught.value.status == 403
    assert SECRET not in str(caught.value)


def test_a_role_without_the_cluster_has_cautious_capabilities(secured: str, authority: Path) -> None:
    able = _engine(secured, authority, "serve").capabilities()
    assert (able.kind, able.version, able.sparse_terms) == ("elasticsearch", "", "")


@pytest.mark.parametrize(("user", "password"), [("serve", "wrong"), ("nobody", SECRET)])
def test_wrong_credentials_stop_at_once(user: str, password: str, secured: str, authority: Path) -> None:
    engine = _engine(secured, authority, user, password)
    for call in CALLS.values():
        started = time.monotonic()
        with pytest.raises(EngineAuthError, match="SSI_ENGINE_PASSWORD") as caught:
            call(engine)
        assert time.monotonic() - started < 2
        assert caught.value.status == 401
        assert password not in str(caught.value)


def test_no_credentials(secured: str, authority: Path) -> None:
    engine = open_engine(f"elasticsearch:{secured}", EngineSettings(ca_file=str(authority)))
    with pytest.raises(EngineError) as caught:
        engine.search("docs", {})
    assert type(caught.value) is EngineAuthError


def test_an_authority_that_nobody_named_is_not_trusted(secured: str) -> None:
    engine = open_engine(f"elasticsearch:{secured}", EngineSettings(user="serve", password=SECRET))
    for call in CALLS.values():
        with pytest.raises(EngineRejected, match="SSI_ENGINE_CA_FILE") as caught:
            call(engine)
        assert (caught.value.error_type, SECRET in str(caught.value)) == ("tls", False)


# Commands


@pytest.fixture(scope="module")
def site(secured: str, authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of `fill_site`."""
    path = tmp_path_factory.mktemp("site")
    admin = _engine(secured, authority, "elastic", "engine-tests")
    fill_site(path, admin)
    admin.close()
    return path


def fill_site(path: Path, admin: Engine) -> None:
    """Write documents, two models, queries and judgements into a folder, and a shop with a click log into an engine."""
    Shop(path, admin, "shop-clicks").fill().log(path / "log")
    for name, row in ((QUERIES_INDEX, query("q1")), (EVENTS_INDEX, event(query_id="q1"))):
        admin.create_index(name, {"dynamic": False, "properties": {"timestamp": {"type": "date"}}})
        admin.bulk(name, [WriteOp("index", "a", row)])
        admin.refresh(name)
    documents = random_documents(40)
    write_lines(path / "docs.jsonl", documents)
    save_model(model_of(documents), path / "model")
    save_model(model_of(documents, n_dims=3), path / "next")
    ids = list(documents)
    (path / "queries.tsv").write_text("".join(f"q{k}\tword{k % 30} word{k % 7}\n" for k in range(40)))
    (path / "qrels.tsv").write_text("".join(f"q{k}\t{ids[k]}\t1\n" for k in range(40)))


RETRAIN = ["retrain", "--index", "shop-clicks", "--clicks", "log"]
WITHOUT_INDEX = ("clicks", "interleave")
READING = {
    "search": ["search", "word1 word2", "--model", "model"],
    "revectorize --dry-run": ["revectorize", "--model", "next", "--dry-run"],
    "versions": ["versions"],
    "drift": ["drift", "--model", "model"],
    "gc --dry-run": ["gc", "--dry-run"],
    "calibrate --dry-run": [
        "calibrate",
        "--model",
        "model",
        "--qrels",
        "qrels.tsv",
        "--query-file",
        "queries.tsv",
        "--dry-run",
    ],
    "clicks import": ["clicks", "import", "--log", "imported"],
    "clicks doctor": ["clicks", "doctor", "log", "--index", "shop-clicks"],
    "retrain --dry-run": [*RETRAIN, "--dry-run"],
    # Where no list was interleaved, it says so.
    "interleave report": ["interleave", "report"],
}
WRITING = {
    "revectorize": ["revectorize", "--model", "next"],
    "sync": ["sync", "--model", "next"],
    "calibrate": ["calibrate", "--model", "model", "--qrels", "qrels.tsv", "--query-file", "queries.tsv"],
    "promote": ["promote", "{next}"],
    "rollback": ["rollback"],
    "gc": ["gc", "--keep", "0"],
    "index": ["index", "docs.jsonl", "--model", "next"],
    "index --rebuild": ["index", "docs.jsonl", "--model", "next", "--rebuild"],
    "retrain": RETRAIN,
}


@pytest.fixture
def typed(site: Path, secured: str, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Give a function that types a command as a user of the engine, in the folder."""
    monkeypatch.chdir(site)
    monkeypatch.setenv("SSI_STATE_DIR", str(site / "state"))
    return commands_of(f"elasticsearch:{secured}", site, authority)


def commands_of(spec: str, site: Path, authority: Path) -> Callable[..., Result]:
    """Return a function that types a command as a user of the engine of ``spec``."""
    next_id = json.loads((site / "next" / "manifest.json").read_text())["model_id"]

    def run(user: str, command: list[str], password: str = SECRET) -> Result:
        environ = {
            "SSI_ENGINE_USER": user,
            "SSI_ENGINE_PASSWORD": password,
            "SSI_ENGINE_CA_FILE": str(authority),
        }
        words = [next_id if word == "{next}" else word for word in command]
        common = ["--engine", spec]
        if "--index" not in words and words[0] not in WITHOUT_INDEX:
            common += ["--index", "shop"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "DEADLINE_MS", 60_000.0)
            result = CliRunner().invoke(main, [*words, *common], env=environ, catch_exceptions=False)
        assert password not in result.output
        return result

    return run


@pytest.mark.parametrize("command", [*READING.values(), *WRITING.values()], ids=[*READING, *WRITING])
def test_a_wrong_password_ends_a_command_with_the_remedy(command: list[str], typed: Callable[..., Result]) -> None:
    result = typed("operator", command, "not the password")
    assert result.exit_code == 4, result.output
    assert "answered 401" in result.stderr and "SSI_ENGINE_PASSWORD" in result.stderr


def _all_of(engine: Engine) -> dict[str, object]:
    """Return every index with its mapping, settings, aliases and documents."""
    names = requests_of(engine).request("GET", "/_alias")
    return {name: (engine.index_info(name), contents(engine, name)) for name in names}


def test_a_searcher_reads_and_an_operator_writes(typed: Callable[..., Result], secured: str, authority: Path) -> None:
    for command in (["index", "docs.jsonl", "--model", "model"], WRITING["revectorize"], WRITING["promote"]):
        made = typed("operator", command)
        assert made.exit_code == 0, made.output
    engine = _engine(secured, authority, "elastic", "engine-tests")
    before = _all_of(engine)
    for name, command in READING.items():
        result = typed("searcher", command)
        assert result.exit_code == (3 if name == "interleave report" else 0), (name, result.output)
    for name, command in WRITING.items():
        result = typed("searcher", command)
        assert result.exit_code == 4, (name, result.output)
        assert "answered 403" in result.output, (name, result.output)
        assert "use credentials whose role allows this" in result.output, (name, result.output)
    assert _all_of(engine) == before
    for name, command in WRITING.items():
        result = typed("operator", command)
        assert result.exit_code == 0, (name, result.output)
    engine.close()


def _serve(url: str, site: Path, *options: str, ready_s: float = 60.0) -> ServiceProcess:
    spec = ["--engine", f"elasticsearch:{url}", "--index", "shop-clicks", "--models", str(site / "models")]
    return ServiceProcess(*spec, "--deadline-ms", "20000", *options, ready_s=ready_s)


def test_a_searcher_serves_and_its_sink_says_what_it_may_not(
    site: Path, secured: str, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSI_ENGINE_USER", "searcher")
    monkeypatch.setenv("SSI_ENGINE_PASSWORD", SECRET)
    monkeypatch.setenv("SSI_ENGINE_CA_FILE", str(authority))
    with _serve(secured, site, "--sink", "engine") as service:
        status, answer = service.ask("POST", "/search", {"query": "wish1 common"}, timeout=30)
        assert (status, answer["reranked"]) == (200, True)
        until = time.monotonic() + 60
        while not service.figure("ssi_sink_dropped") and time.monotonic() < until:
            time.sleep(0.5)
        assert service.figure("ssi_sink_dropped") == 1
        assert '"impressions could not be written"' in service.log and "EngineAuthError" in service.log
        assert SECRET not in service.log


def test_a_service_with_a_wrong_password_is_not_ready(
    site: Path, secured: str, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSI_ENGINE_USER", "searcher")
    monkeypatch.setenv("SSI_ENGINE_PASSWORD", "not the password")
    monkeypatch.setenv("SSI_ENGINE_CA_FILE", str(authority))
    with pytest.raises(AssertionError, match=r"did not become ready[\s\S]*401"), _serve(secured, site, ready_s=15):
        pass
