"""Engines that somebody else runs: signed for AWS, behind a gateway's headers or a proxy, by an Elastic Cloud id."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.errors import ConfigError, EngineAuthError, EngineUnavailable
from tests.engines.policy import library
from tests.engines.scripted import Answer, Request, ScriptedServer, json_answer

KEY_ID, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-token/of=role"


def signature_of(method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return the signature that AWS computes for a request (Signature Version 4, section "Create a signed request")."""
    stated = dict(re.findall(r"(\w+)=([^,]+)", headers["authorization"]))
    _, day, region, service, _ = stated["Credential"].split("/")
    path, _, query = target.partition("?")
    pairs = sorted((quote(k, safe="-._~"), quote(v, safe="-._~")) for k, v in parse_qsl(query, keep_blank_values=True))
    names = stated["SignedHeaders"].split(";")
    canonical = "\n".join(
        [
            method,
            quote(path, safe="/-._~"),
            "&".join(f"{k}={v}" for k, v in pairs),
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Signed(BaseHTTPRequestHandler):
    """Answers 403 unless the request is signed as AWS demands."""

    scopes: list[str]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        stated = headers.get("authorization", "")
        good = stated.startswith("AWS4-HMAC-SHA256 ") and {"host", "x-amz-date", "x-amz-content-sha256"} <= set(
            re.findall(r"SignedHeaders=([^,]+)", stated)[0].split(";")
        )
        good = good and headers.get("x-amz-security-token") == TOKEN
        good = good and headers["x-amz-content-sha256"] == hashlib.sha256(body).hexdigest()
        good = good and stated.endswith(signature_of(self.command, self.path, headers, body))
        self.scopes.append(re.findall(r"Credential=([^,]+)", stated)[0] if good else "refused")
        docs = [{"_index": "shop", "_id": "a b/ü", "found": True, "_source": {}, "_seq_no": 1, "_primary_term": 1}]
        items = [{"index": {"_id": "a", "status": 201, "_seq_no": 1, "_primary_term": 1}}]
        content = json.dumps(
            {"docs": docs, "items": items, "count": 3} if good else {"error": {"type": "sig"}}
        ).encode()
        self.send_response(200 if good else 403)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names of http.server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    library("botocore")
    for name, value in {"ACCESS_KEY_ID": KEY_ID, "SECRET_ACCESS_KEY": SECRET, "SESSION_TOKEN": TOKEN}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    scopes: list[str] = []
    handler = type("Handler", (Signed,), {"scopes": scopes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"opensearch:http://127.0.0.1:{server.server_port}", scopes
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("service", ["es", "aoss"])
def test_every_kind_of_request_is_signed(signed: tuple[str, list[str]], service: str) -> None:
    spec, scopes = signed
    engine = open_engine(spec, EngineSettings(aws_region="eu-central-1", aws_service=service))
    assert engine.bulk("shop", [WriteOp("index", "a", {"text": "größer"})])[0].status == 201
    assert engine.get("shop", ["a b/ü"])[0] is not None
    assert engine.count("shop", {"match": {"text": "a+b & c"}}) == 3
    engine.close()
    assert len(scopes) >= 3
    assert {scope.split("/", 1)[0] + "/" + scope.split("/", 2)[2] for scope in scopes} == {
        f"{KEY_ID}/eu-central-1/{service}/aws4_request"
    }


def test_another_secret_is_refused_and_none_is_told(
    signed: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    spec, scopes = signed
    settings = EngineSettings(aws_region="eu-central-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    engine = open_engine(spec, settings)
    with pytest.raises(EngineAuthError) as refused:
        engine.count("shop")
    engine.close()
    assert scopes == ["refused"] and "another" not in str(refused.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no AWS credentials were found: set AWS_ACCESS_KEY_ID"):
        open_engine(spec, settings)


class Proxy(BaseHTTPRequestHandler):
    """Hands requests on, and keeps what was asked of it."""

    asked: list[tuple[str, str, str | None]]

    def answer(self) -> None:
        self.asked.append((self.command, self.path, self.headers.get("proxy-authorization")))
        if self.command == "CONNECT":
            self.send_error(502)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        passed = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        request = urllib.request.Request(self.path, body or None, passed, method=self.command)  # noqa: S310
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as reply:
            content = reply.read()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_CONNECT = answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    asked: list[tuple[str, str, str | None]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Proxy,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_an_engine_is_reached_by_a_proxy(proxy: tuple[str, list[tuple[str, str, str | None]]]) -> None:
    address, asked = proxy
    login = f"Basic {base64.b64encode(b'me:hunter2').decode()}"
    with ScriptedServer("elasticsearch") as server:
        server.script("/shop/_count", lambda s, r: json_answer(200, {"count": 3}))
        engine = open_engine(server.spec, EngineSettings(proxy=f"http://me:hunter2@{address}"))
        assert engine.count("shop") == 3
        url = server.spec.partition(":")[2]
        assert asked[0][1].startswith(f"{url}/shop/_count") and asked[0][2] == login
        engine.close()
    far = open_engine("opensearch:https://search.example.org", EngineSettings(proxy=f"http://me:hunter2@{address}"))
    with pytest.raises(EngineUnavailable) as caught:
        far.count("shop")
    far.close()
    assert asked[-1] == ("CONNECT", "search.example.org:443", login)
    assert "hunter2" not in str(caught.value) and "hunter2" not in repr(EngineSettings(proxy="http://a:hunter2@b"))


def test_headers_go_with_every_request() -> None:
    with ScriptedServer("opensearch") as server:
        heard: list[dict[str, str]] = []

        def hear(_: ScriptedServer, request: Request) -> Answer:
            heard.append(request.headers)
            return json_answer(200, {"count": 3})

        server.script("/shop/_count", hear)
        variables = {"SSI_ENGINE_HEADERS": '{"X-Tenant": "shop", "Authorization": "Bearer t0ken"}'}
        settings = EngineSettings.from_environment(variables)
        engine = open_engine(server.spec, settings)
        assert engine.count("shop") == 3 and "t0ken" not in repr(settings)
        engine.close()
    lowered = {name.lower(): value for name, value in heard[0].items()}
    assert (lowered["x-tenant"], lowered["authorization"]) == ("shop", "Bearer t0ken")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"headers": {"X Tenant": "a"}}, "header 'X Tenant' is invalid"),
        ({"headers": {"X-Tenant": "a\r\nX-Other: secret"}}, "header 'X-Tenant' is invalid"),
        ({"headers": {"X-Tenant": 3}}, "give a table of texts"),
        ({"headers": "X-Tenant: a"}, "give a table of texts"),
        ({"headers": {"authorization": "secret"}, "api_key": "secret"}, "one kind of credentials"),
        ({"aws_region": "eu-central-1", "api_key": "secret"}, "one kind of credentials"),
        ({"aws_region": "eu-central-1", "aws_service": "s3"}, "choose es, or aoss"),
        ({"proxy": "secret:8080"}, "write http://HOST:PORT"),
    ],
)
def test_what_is_not_legal_is_told_without_secrets(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineSettings.from_environment({}, table)
    assert message in str(caught.value) and "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="not a JSON object of texts"):
        EngineSettings.from_environment({"SSI_ENGINE_HEADERS": "X-Tenant: a"})


@pytest.mark.parametrize(
    ("behind", "url"),
    [
        ("eu-central-1.aws.example.io$ab12$cd34", "https://ab12.eu-central-1.aws.example.io:443"),
        ("example.io:9243$ab12$", "https://ab12.example.io:9243"),
        ("example.io:9243$ab12:9244$cd34", "https://ab12.example.io:9244"),
    ],
)
def test_a_cloud_id_is_the_url_behind_it(behind: str, url: str) -> None:
    engine = open_engine(f"elasticsearch:my-shop:{base64.b64encode(behind.encode()).decode()}", EngineSettings())
    assert engine.spec == f"elasticsearch:{url}"
    engine.close()


@pytest.mark.parametrize("spec", ["localhost:9200", "name:bm90aGluZw==", "name:", ":YSRiJGM="])
def test_what_is_no_cloud_id_is_told(spec: str) -> None:
    with pytest.raises(ConfigError, match="elasticsearch:CLOUD_ID"):
        open_engine(f"elasticsearch:{spec}", EngineSettings())
