"""docs/guide/api.md names every route of the service, and each of its examples gives the answer that it shows.

In a section the examples of every language stand in one order, each beginning with a word of its language, and so do
the answers, in which a number of decimals stands for any.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.clicks.importing import open_logs
from reranker.clicks.pairs import PairConfig, make_pairs
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.service.app import OWN_PARTS, all_parts
from reranker.service.auth import new_key
from tests.engines.policy import do_without
from tests.live.service_process import ServiceProcess
from tests.served import model_of, serve

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "guide" / "api.md").read_text(encoding="utf-8")
PACKAGES = ROOT / "tests" / "clients.txt"
PREFACE, *PARTS = re.split(r"^## (?=.)", TEXT, flags=re.MULTILINE)
SECTIONS = {part.partition("\n")[0]: part for part in PARTS}
BEGINS = {"sh": "curl ", "python": "ask|urllib3", "js": "await "}
"""How a request begins in each language."""
EXAMPLES = [name for name, text in SECTIONS.items() if "```sh" in text]
PROXIED = "As the engine is asked"
SNIPPET = re.findall(r"```html\n(.*?)```", TEXT, re.DOTALL)
FRAMEWORKS = re.findall(r"`pip install ([\w-]+)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL)
WAIT_S = 30.0


def blocks(text: str, kind: str) -> str:
    """Return all blocks of a language in a text, one after the other."""
    return "".join(re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def requests_of(text: str, kind: str) -> tuple[str, list[str]]:
    """Return what the guide and a section of it set in a language, and the requests of the section."""
    first, *requests = re.split(rf"^(?={BEGINS[kind]})", blocks(text, kind), flags=re.MULTILINE)
    return blocks(PREFACE, kind) + first, [request.rstrip() for request in requests]


def answers_of(text: str) -> list[Any]:
    """Return the answers that a section shows."""
    written, found = blocks(text, "json").strip(), []
    while written:
        value, end = json.JSONDecoder().raw_decode(written)
        found.append(value)
        written = written[end:].strip()
    return found


def is_shown(shown: Any, answer: Any) -> bool:
    """Return whether an answer is what the guide shows, which may leave fields and items out."""
    if isinstance(shown, dict):
        return isinstance(answer, dict) and all(
            name in answer and is_shown(shown[name], answer[name]) for name in shown
        )
    if isinstance(shown, list):
        return isinstance(answer, list) and len(shown) <= len(answer) and all(map(is_shown, shown, answer))
    if isinstance(shown, float):
        return isinstance(answer, float)
    if isinstance(shown, str) and shown.endswith("…"):
        return isinstance(answer, str) and len(answer) >= len(shown) and answer.startswith(shown[:-1])
    return type(shown) is type(answer) and bool(shown == answer)


@pytest.mark.parametrize(
    ("shown", "answer", "fits"),
    [
        ({"a": "x…"}, {"a": "xyz", "b": 1}, True),
        ({"a": "x…"}, {"a": "yx"}, False),
        ({"a": "…"}, {"a": ""}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1.5], [2.5, 3], True),
        ([1.5], [], False),
        ([1.5], ["2"], False),
        (1, 1, True),
        (1, 2, False),
        (True, 1, False),
        (False, False, True),
        ({"a": {"b": 1}}, {"a": [1]}, False),
    ],
)
def test_what_counts_as_the_answer_that_is_shown(shown: Any, answer: Any, fits: bool) -> None:
    assert is_shown(shown, answer) == fits


def test_the_guide_names_the_routes_of_the_service_and_no_others() -> None:
    listed = {("GET", "/openapi.json")}  # FastAPI's own
    for part in (*OWN_PARTS, *all_parts()):
        for route in part.router.routes:
            methods: set[str] = getattr(route, "methods", set()) - {"HEAD"}
            path: str = getattr(route, "path", "")
            if methods and not path.startswith("/page/"):
                listed.add(("POST" if "POST" in methods else "GET", path))
    assert set(re.findall(r"`(GET|POST) (/\S*)`", PREFACE)) == listed
    tried = set()
    for name in EXAMPLES:
        for request in requests_of(SECTIONS[name], "sh")[1]:
            (path,) = re.findall(r"\$SSI(/\S*)", request)
            method = "POST" if re.search(r" -d | -X POST", request) else "GET"
            if not path.startswith(("/shop/", "/_")):  # paths of the engine
                tried.add((method, path))
    assert tried == listed


PATH = re.compile(r"""(?:\$SSI|SSI \+ "|ask\(")(/[\w/.]*)""")


def test_every_example_is_there_in_every_language_and_in_one_order() -> None:
    assert len(EXAMPLES) == 9
    for name in EXAMPLES:
        asked = [[PATH.findall(one) for one in requests_of(SECTIONS[name], kind)[1]] for kind in BEGINS]
        assert asked[0] and all(len(paths) == 1 for paths in asked[0]) and asked == [asked[0]] * 3, name
        assert len(answers_of(SECTIONS[name])) == len(asked[0]), name


def test_the_links_of_the_guide_to_its_sections_lead_there() -> None:
    anchors = {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in SECTIONS}
    linked = set(re.findall(r"\]\(#([\w-]+)\)", TEXT))
    assert linked <= anchors and len(linked) == len(EXAMPLES)  # Errors need none, the frameworks have one


def test_the_snippet_is_small() -> None:
    (page,) = SNIPPET
    assert len(re.findall(r"<script>.*</script>\n", page, re.DOTALL)[0].encode()) <= 1024


def test_the_frameworks_are_installed_by_the_versions_of_a_file() -> None:
    kept = dict(line.split("==") for line in PACKAGES.read_text(encoding="utf-8").splitlines())
    assert len(FRAMEWORKS) == 3
    assert [name for name, _ in FRAMEWORKS if name not in kept] == []
    assert all(len(code.split("\n")) <= 8 for _, code in FRAMEWORKS)  # five or six lines, and two empty ones


@dataclass(frozen=True)
class Live:
    """A running service as the guide starts it: its process and index, two keys, and where clicks are kept."""

    process: ServiceProcess
    index: str
    key: str
    events_key: str
    sink: Path

    def filled(self, text: str) -> str:
        """Return a part of the guide with this service's address, key and index."""
        text = text.replace("localhost:8080", f"localhost:{self.process.port}").replace("ssi_KEY", self.key)
        return re.sub(r"\bshop\b", self.index, text)

    def search(self) -> dict[str, Any]:
        """Return the answer to a search of session s-812."""
        body = {"query": "red shoes", "size": 3, "session": "s-812"}
        status, found = self.process.ask("POST", "/search", body, {"X-API-Key": self.key})
        assert status == 200
        return dict(found)

    def events(self, query_id: str) -> list[dict[str, Any]]:
        """Return the events of an answer that are written by now."""
        rows = [json.loads(line) for line in self.sink.read_text(encoding="utf-8").splitlines()]
        return [row for row in rows if "action_name" in row and row["query_id"] == query_id]


@contextlib.contextmanager
def started(spec: str, index: str, folder: Path, *options: str) -> Iterator[Live]:
    """Give a service over an index of shoes and boots; the same whatever SEED is, since the guide shows its counts."""
    rng = np.random.default_rng(0)
    words = np.array("red shoes blue running leather boots black summer sandals hiking".split())
    documents = {
        f"d{n}": {"title": " ".join(rng.choice(words, 3)), "text": " ".join(rng.choice(words, 12))}
        for n in range(1, 61)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SEED", raising=False)
        model = model_of(documents, n_dims=100, scale=0.1)
    with contextlib.closing(open_engine(spec)) as engine:
        serve(engine, index, folder, documents, model)
    save_model(model, folder / "model")
    (key, line), (events_key, second) = new_key("me", "admin"), new_key("site", "events")
    (folder / "keys.txt").write_text(f"{line}\n{second}\n")
    sink = folder / "impressions.ndjson"
    named = {"engine": spec, "index": index, "model": folder / "model", "sink": sink, "api-keys": folder / "keys.txt"}
    given = [str(word) for name, value in named.items() for word in (f"--{name}", value)]
    with ServiceProcess(*given, "--deadline-ms", "20000", *options) as process:
        yield Live(process, index, key, events_key, sink)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("guide")
    with started(f"tantivy:{folder / 'index'}", "shop", folder) as service:
        yield service


@pytest.fixture(scope="module")
def proxy(elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    spec, index = f"elasticsearch:{elasticsearch_url}", f"guide-{uuid.uuid4().hex[:10]}"
    try:
        with started(spec, index, tmp_path_factory.mktemp("guide-proxy"), "--proxy") as service:
            yield service
    finally:
        with contextlib.closing(open_engine(spec)) as engine:
            engine.delete_index(index)


def value_of(text: str) -> Any:
    """Return the JSON of an answer, or its text where it is none."""
    return json.loads(text) if text[:1] in "{[" else text


def by_curl(live: Live, before: str, requests: list[str], status: str) -> list[Any]:
    """Return the answers that curl gets, all of a status."""
    found = []
    for request in requests:
        script = live.filled(f"{before}{request} -w '\\n%{{http_code}}'")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
        answer, _, got = done.stdout.rpartition("\n")
        assert got == status, (request, answer)
        found.append(value_of(answer))
    return found


def by_python(live: Live, before: str, requests: list[str]) -> list[Any]:
    """Return the answers that Python gets."""
    listed = ",\n".join(requests)
    script = live.filled(f"{before}\nimport json\nprint(json.dumps([{listed}]))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def in_a_browser(browser: Any, live: Live, before: str, requests: list[str]) -> list[Any]:
    """Return the answers that a page of the service gets."""
    browser.get(live.filled("http://localhost:8080/docs"))
    listed = ",\n".join(requests)
    told = live.filled(f"{before}\nreturn [{listed}];")
    answers = browser.execute_async_script(
        f"const done = arguments[arguments.length - 1];\n(async () => {{\n{told}\n}})()"
        ".then(done, (error) => done(`failed: ${error}`));"
    )
    assert isinstance(answers, list), answers
    return answers


def assert_examples(name: str, live: Live, browser: Any, fill: Callable[[str], str] = str) -> None:
    """Assert that each example of a section gives the answer that it shows."""
    text, shown = fill(SECTIONS[name]), answers_of(SECTIONS[name])
    said = re.search(r"\bStatus (\d{3})\b", text)
    for answers in (
        by_curl(live, *requests_of(text, "sh"), said[1] if said else "200"),
        by_python(live, *requests_of(text, "python")),
        in_a_browser(browser, live, *requests_of(text, "js")),
    ):
        assert len(answers) == len(shown)
        assert [pair for pair in zip(shown, answers, strict=True) if not is_shown(*pair)] == []


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"not seen in {WAIT_S:g} s: {what}"
        time.sleep(0.1)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*EXAMPLES} - {PROXIED, "Clicks"}))
def test_the_examples_give_what_they_show(name: str, live: Live, browser: Any) -> None:
    assert_examples(name, live, browser)


@pytest.mark.live
@pytest.mark.slow
def test_the_examples_before_an_engine_give_what_they_show(proxy: Live, browser: Any) -> None:
    assert_examples(PROXIED, proxy, browser)


@pytest.mark.live
@pytest.mark.slow
def test_the_clicks_of_the_examples_are_in_the_click_log(live: Live, browser: Any) -> None:
    answer = live.search()
    query_id, clicked = answer["query_id"], answer["hits"][2]["id"]
    assert_examples("Clicks", live, browser, lambda text: text.replace("d7", clicked).replace("QUERY_ID", query_id))
    until(lambda: len(live.events(query_id)) == 3, "the event of each language in the log")
    for row in live.events(query_id):
        assert (row["action_name"], row["session_id"]) == ("click", "s-812")
        attributes = row["event_attributes"]
        assert (attributes["object"]["object_id"], attributes["position"]["ordinal"]) == (clicked, 3)
    pairs = list(make_pairs(open_logs([live.sink]), PairConfig()).pairs())
    assert {("red shoes", clicked)} == {(pair.query, pair.better) for pair in pairs}


class Site(BaseHTTPRequestHandler):
    """A site that shows one page, and passes ``/events`` on to the service as the guide says."""

    page, key, port = "", "", 0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Show the page at any address."""
        self._answer(200, "text/html", self.page.encode())

    def do_POST(self) -> None:
        """Pass events on."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        service = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": self.headers["Content-Type"]}
        service.request("POST", self.path, body, headers)
        answer = service.getresponse()
        self._answer(answer.status, "application/json", answer.read())
        service.close()

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.live
@pytest.mark.slow
def test_the_snippet_reports_what_is_opened_and_nothing_else(live: Live, browser: Any) -> None:
    answer = live.search()
    query_id = answer["query_id"]
    page = f"<!doctype html><title>Shoes</title><p id='beside'>beside</p>{SNIPPET[0]}"
    told = {"page": page.replace("QUERY_ID", query_id), "key": live.events_key, "port": live.process.port}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("ThisSite", (Site,), told)) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{site.server_port}/")
        link = browser.find_element("css selector", "#results a")
        opened = "arguments[0].dispatchEvent(new MouseEvent('auxclick', {bubbles: true, button: arguments[1]}))"
        browser.execute_script(opened, link, 2)  # a menu
        browser.find_element("id", "beside").click()
        browser.find_element("css selector", "#results").click()
        browser.execute_script(opened, link, 1)  # another tab
        link.click()
        until(lambda: str(browser.current_url).endswith("/shoes/7"), "the page that the link leads to")
        until(lambda: len(live.events(query_id)) == 2, "both clicks in the log")
        site.shutdown()
    for row in live.events(query_id):
        assert (row["action_name"], row["session_id"]) == ("click", "s-812")
        assert row["event_attributes"] == {
            "object": {"object_id": "d7", "object_id_field": "_id"},
            "position": {"ordinal": 3},
        }


@pytest.fixture(scope="module")
def clients() -> Path:
    """Give the Python of the environment in which the frameworks are installed (`make clients`)."""
    python = Path(os.environ.get("SSI_CLIENTS") or Path(sys.prefix) / "clients") / "bin" / "python"
    if not python.exists():
        do_without("clients", "`make clients` installs LangChain, LlamaIndex and Haystack")
    return python


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), FRAMEWORKS, ids=[name for name, _ in FRAMEWORKS])
def test_the_rerankers_of_frameworks_rerank_here(name: str, code: str, live: Live, clients: Path) -> None:
    quiet = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "HAYSTACK_TELEMETRY_ENABLED": "False"}
    done = subprocess.run(
        [str(clients), "-c", live.filled(code)], capture_output=True, text=True, check=False, timeout=300, env=quiet
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['red shoes']"
