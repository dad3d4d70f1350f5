"""``ssi serve`` as operators type it, in a process of its own over the embedded engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.service.auth import ApiKeys, new_key
from reranker.service.server import listen
from tests.engines.policy import do_without
from tests.engines.processes import free_port
from tests.live.service_process import ServiceProcess
from tests.services import sibling, small_index
from tests.unit.test_tracing import collector

SSI = [sys.executable, "-c", "from reranker.cli.main import main; main()"]
CANARY = "canary-4711@example.org"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    engine = open_engine(f"tantivy:{path}/index")
    served = small_index(path, engine)
    save_model(served.model, path / "model")
    save_model(sibling(served, 3), path / "next")
    engine.close()
    return path


def options(site: Path, *more: str) -> list[str]:
    return ["--engine", f"tantivy:{site}/index", "--index", "docs", "--model", str(site / "model"), *more]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "either --model or --models"),
        (["--model", "m", "--models", "n"], "either --model or --models"),
        (["--model", "m", "--host", "0.0.0.0"], "--api-keys"),
        (["--model", "m", "--tls-cert", "cert.pem"], "--tls-key"),
        (["--model", "m", "--api-keys", "/nowhere/keys"], "cannot be read"),
        (["--model", "m", "--body", "/nowhere/body.json"], "cannot be read"),
        (["--model", "m", "--golden", "/nowhere/golden"], "cannot be read"),
        (["--model", "m", "--percent", "101"], "101"),
        (["--model", "m", "--body", "{body}"], "{{query}}"),
    ],
)
def test_wrong_options_are_refused_before_anything_listens(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "body.json").write_text('{"query": {"match": {"text": "shoes"}}}')
    arguments = [part.replace("{body}", str(tmp_path / "body.json")) for part in arguments]
    options = ["--engine", f"tantivy:{tmp_path}", "--index", "docs", "--port", str(free_port())]
    result = CliRunner().invoke(main, ["serve", *options, *arguments])
    assert result.exit_code in (2, 3) and told in result.stderr


def test_a_new_key_is_printed_once_and_its_hash_goes_into_the_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--new-key", "shop:events"])
    (tmp_path / "keys").write_text(result.stderr)
    assert ApiKeys.read(tmp_path / "keys").find(result.stdout.strip()) is not None
    assert result.exit_code == 0 and result.stdout.startswith("ssi_")
    assert "shop events sha256:" in result.stderr and result.stdout.strip() not in result.stderr
    assert CliRunner().invoke(main, ["serve", "--new-key", "a b"]).exit_code == 2


def test_a_service_starts_answers_reloads_and_ends(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "model", tmp_path / "model")
    arguments = options(site)
    arguments[arguments.index(str(site / "model"))] = str(tmp_path / "model")
    with ServiceProcess(*arguments, settings={"poll_s": 3600}) as service:
        first = service.ask("POST", "/search", {"query": "word3 word11"})
        assert first[0] == 200 and first[1]["reranked"]
        shutil.rmtree(tmp_path / "model")
        shutil.copytree(site / "next", tmp_path / "model")
        service.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while (second := service.ask("POST", "/search", {"query": "word3"})[1])["model_id"] == first[1]["model_id"]:
            assert time.monotonic() < end, service.log
            time.sleep(0.05)
        assert second["reranked"]
        status, seconds = service.terminate()
        assert status == 0 and seconds < 10
        lines = [json.loads(line) for line in service.log.splitlines()]
        assert {"listening", "draining", "stopped", "request", "version"} <= {line["event"] for line in lines}


def test_a_service_that_stops_sends_the_spans_that_wait(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        with ServiceProcess(*options(site)) as service:
            assert service.ask("POST", "/search", {"query": "word3 secretword"})[0] == 200
            assert service.terminate()[0] == 0
    sent = b"".join(bodies)
    assert b"POST /search" in sent and b"candidates" in sent and b"secretword" not in sent


def test_a_receiver_of_spans_that_is_down_does_not_delay_the_end(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with ServiceProcess(*options(site)) as service:
        assert service.ask("POST", "/search", {"query": "word3"})[0] == 200
        status, seconds = service.terminate()
        assert status == 0 and seconds < 10
        assert all(json.loads(line) for line in service.log.splitlines())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_second_service_does_not_share_the_port(site: Path, tmp_path: Path, host: str) -> None:
    (tmp_path / "keys").write_text(new_key("shop", "search")[1] + "\n")
    with ServiceProcess(*options(site, "--api-keys", str(tmp_path / "keys"))) as service:
        second = subprocess.run(
            [*SSI, "serve", *options(site, "--host", host, "--without-keys", "--port", str(service.port))],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2 and f"cannot listen on {host}:{service.port}" in second.stderr
        assert "--port" in second.stderr and "Traceback" not in second.stderr
        assert [service.ask("POST", "/search", {"query": "word3"})[0] for _ in range(8)] == [401] * 8
        # Nor one that looked a moment earlier, when nobody listened yet.
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((host, service.port))
        service.terminate()
    # HttpConnections of the one that has ended keep nobody from its port.
    listen("127.0.0.1", service.port).close()


def test_the_log_and_the_figures_hold_no_query_no_key_and_no_control_character(site: Path, tmp_path: Path) -> None:
    key, line = new_key("shop", "search")
    (tmp_path / "keys").write_text(line + "\n")
    with ServiceProcess(*options(site, "--api-keys", str(tmp_path / "keys"), "--log-level", "debug")) as service:
        bearer = {"Authorization": f"Bearer {key}"}

        def ask(body: Any, path: str = "/search", **headers: str) -> tuple[int, str]:
            status, answer = service.ask("POST", path, body, {**bearer, **headers})
            return status, json.dumps(answer)

        asked = [
            ask({"query": f"{CANARY} word1\r\n\x1b[31m", "session": CANARY, "client_id": CANARY}),
            ask({"query": CANARY, "size": CANARY}),
            ask({"query": "word1", "body": {"query": {"match": {"text": "{{query}}", CANARY: CANARY}}}}),
            ask({"query": "word1", "body": {"query": {"nonsense": {CANARY: "{{query}}"}}}}),
            ask(f'{{"query": "{CANARY}"'.encode()),
            ask({"query": "word1"}, path=f"/{CANARY}"),
            ask({"query": "word1"}, Authorization=f"Bearer {CANARY}"),
            ask({"query": "word1"}, **{"X-Request-Id": "a b canary-4711"}),
        ]
        assert [status for status, _ in asked] == [200, 422, 422, 422, 400, 404, 401, 200]
        assert not any(CANARY in answer for status, answer in asked if status != 200)
        figures = service.ask("GET", "/metrics", headers=bearer)[1]
        service.terminate()
        log = service.log
    assert "canary" not in log + figures and key not in log + figures and key[4:20] not in log
    assert all(character == "\n" or " " <= character < "\x7f" for character in log)
    assert '"key": "shop"' in log


def test_tls(site: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        do_without("openssl", "it makes the certificate")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            tmp_path / "key.pem",
            "-out",
            tmp_path / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with ServiceProcess(*options(site, *tls), tls=tmp_path / "cert.pem") as service:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with urllib.request.urlopen(f"https://127.0.0.1:{service.port}/health", context=trusted, timeout=10) as answer:
            assert answer.status == 200
        assert service.terminate()[0] == 0
    assert os.path.exists(tmp_path / "cert.pem")


MOST_UNWRITTEN_S = 1.5
"""Seconds for which an impression may wait for its file on a busy machine; `sink.PAUSE_S` on an idle one."""


class Visitors:
    """Four clients that search at once until the end, each search by a connection of its own."""

    def __init__(self, service: ServiceProcess) -> None:
        self.port, self.over = service.port, threading.Event()
        self.answers: list[tuple[float, str, str]] = []
        """(time in monotonic seconds, process by the first part of its request ids, query id)."""
        self.failed = 0
        self._threads = [threading.Thread(target=self._search) for _ in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(30)

    def _search(self) -> None:
        while not self.over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            try:
                connection.request(
                    "POST", "/search", b'{"query": "word3 word11"}', {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                answer = json.loads(response.read())
                assert response.status == 200 and answer["reranked"]
                process = response.headers["x-request-id"].partition("-")[0]
                self.answers.append((time.monotonic(), process, answer["query_id"]))
            except OSError:
                self.failed += 1
            finally:
                connection.close()

    def wait_for(self, n_processes: int) -> None:
        """Return when so many processes have answered."""
        end = time.monotonic() + 60
        while len(self.processes) < n_processes:
            assert time.monotonic() < end, self.processes
            time.sleep(0.05)

    @property
    def processes(self) -> list[str]:
        """The processes that have answered, in the order of their first answers."""
        return list(dict.fromkeys(process for _, process, _ in self.answers))


def test_of_two_workers_one_may_be_killed_under_load(site: Path, tmp_path: Path) -> None:
    with ServiceProcess(*options(site, "--workers", "2", "--sink", str(tmp_path / "log.ndjson"))) as service:
        with Visitors(service) as visitors:
            visitors.wait_for(2)
            time.sleep(2 * MOST_UNWRITTEN_S)
            first = service.process.children()
            killed_at = time.monotonic()
            first[0].kill()
            visitors.wait_for(3)
            time.sleep(0.5)
        assert len(first) == 2 and len(visitors.processes) == 3
        assert visitors.failed <= 4, "more than were in flight"
        counted = re.search(r'ssi_requests_total{method="POST",path="/search",status="200"} (.*)', service.figures)
        n_answered = len(visitors.answers)
        # The worker may have been killed between an answer and its count, on each of four connections.
        assert counted and n_answered - 4 <= float(counted[1]) <= n_answered + visitors.failed
        assert service.figure("ssi_searchable") == 1 and service.figure("ssi_version") == 1
        assert service.figure("ssi_processes") == 2
        second = service.process.children()
        status, seconds = service.terminate()
        assert status == 0 and seconds < 12 and not any(process.is_running() for process in second)
        assert "process ended" in service.log
    rows = [json.loads(line) for line in (tmp_path / "log.ndjson").read_text().splitlines()]
    assert len(rows) <= n_answered + visitors.failed
    written = {row["query_id"] for row in rows}
    lost = [(when, process) for when, process, query_id in visitors.answers if query_id not in written]
    replaced_at = next(when for when, process, _ in visitors.answers if process == visitors.processes[2])
    alive = {process for when, process, _ in visitors.answers if when >= replaced_at}
    assert len(alive) == 2
    assert not alive & {process for _, process in lost}, "only the killed process may lose impressions"
    assert all(killed_at - MOST_UNWRITTEN_S < when for when, _ in lost), "it may lose only the newest ones"


def test_workers_end_with_the_process_that_has_started_them(site: Path) -> None:
    with ServiceProcess(*options(site, "--workers", "2")) as service:
        children = service.process.children()
        service.process.kill()
        assert not psutil.wait_procs(children, timeout=20)[1]


def test_workers_that_cannot_start_end_the_service_with_their_error(site: Path) -> None:
    done = subprocess.run(
        [*SSI, "serve", *options(site, "--workers", "2", "--port", str(free_port()), "--golden", "/dev/null")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3 and "golden" in done.stderr and "Traceback" not in done.stderr
