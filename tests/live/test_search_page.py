"""The search page in a real browser over real engines: type, see both orders, click, find the click in the engine."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reranker.clicks.pairs import PairConfig
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.errors import IndexMissing
from reranker.models.model_folder import save_model
from tests.live.pages import complaints, prefer, until, violations
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve

QUERY = "word3 word11 word5"


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    yield opened
    opened.close()


@pytest.fixture
def served(engine: Engine, tmp_path: Path) -> Iterator[Served]:
    documents = random_documents(60)
    index = f"page-{uuid.uuid4().hex[:10]}"
    yield serve(engine, index, tmp_path / "store", documents, model_of(documents))
    engine.delete_index(index)


def rows(engine: Engine, index: str, session: str) -> list[dict[str, Any]]:
    """Return the rows of a session that can be searched by now."""
    try:
        engine.refresh(index)
        found = [one.source for batch in engine.scan(index) for one in batch]
    except IndexMissing:
        return []
    return [dict(row) for row in found if row.get("session_id") == session]


def test_type_see_click_and_find_the_event(browser: Any, engine: Engine, served: Served, tmp_path: Path) -> None:
    save_model(served.model, tmp_path / "model")
    options = ("--engine", engine.spec, "--index", served.index, "--model", str(tmp_path / "model"))
    with ServiceProcess(*options, "--sink", "engine", "--deadline-ms", "20000") as service:
        browser.get(f"http://127.0.0.1:{service.port}/")
        box = browser.find_element("id", "query")
        until(lambda: browser.switch_to.active_element == box, "the field, ready to type in")
        until(lambda: len(browser.find_elements("css selector", "#version option")) == 2, "the versions")
        box.send_keys(QUERY + "\n")
        until(lambda: len(browser.find_elements("css selector", "#model li")) == 10, "ten reranked hits")
        columns = {
            name: [item.get_attribute("data-id") for item in browser.find_elements("css selector", f"#{name} li")]
            for name in ("engine", "model")
        }
        assert len(columns["engine"]) == 10
        assert columns["engine"] != columns["model"]
        answer = service.ask("POST", "/search", {"query": QUERY}, timeout=30)[1]
        assert columns["model"] == [hit["id"] for hit in answer["hits"]]
        assert browser.find_elements("css selector", "#model .move.up")
        summary = browser.find_element("css selector", "#model summary")
        summary.click()
        assert "word" in browser.find_element("css selector", "#model details[open] tbody").text
        assert browser.find_elements("css selector", "#model mark")
        session = browser.execute_script("return sessionStorage.getItem('ssi.session')")
        browser.find_elements("css selector", "#model h3 a")[3].click()
        events = until(lambda: rows(engine, "ubi_events", session), "the click in the engine")
        thing = events[0]["event_attributes"]
        assert (thing["object"]["object_id"], thing["position"]["ordinal"]) == (columns["model"][3], 4)
        searches = until(lambda: _both(rows(engine, "ubi_queries", session)), "both searches in the engine")
        shown = {row["query_attributes"]["ssi_mode"]: row for row in searches}
        assert shown["rerank"]["query_response_hit_ids"] == columns["model"]
        assert shown["off"]["query_response_hit_ids"] == columns["engine"]
        assert events[0]["query_id"] == shown["rerank"]["query_id"]
        browser.find_element("id", "next").click()
        until(lambda: browser.find_element("css selector", "#model ol").get_attribute("start") == "11", "page two")
        assert complaints(browser) == []
    assert _pairs_of(engine, session, tmp_path) == {(QUERY, columns["model"][3])}


def listed(browser: Any, column: str = "model") -> list[str]:
    script = f"return [...document.querySelectorAll('#{column} li[data-id]')].map((item) => item.dataset.id)"
    return list(browser.execute_script(script))


def check_narrow(browser: Any) -> None:
    browser.set_window_size(400, 900)
    first, second = (browser.find_element("id", name).rect["y"] for name in ("model", "engine"))
    assert first < second, "the reranked list stands first where there is no room for two"
    browser.find_element("css selector", "input[value=engine]").click()
    until(lambda: not browser.find_element("id", "model").is_displayed(), "the engine's list alone")
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    for scheme in ("light", "dark"):
        prefer(browser, scheme)
        assert violations(browser) == [], scheme


def test_filters_back_links_and_narrow_screens(browser: Any, engine: Engine, tmp_path: Path) -> None:
    documents = {
        name: {
            **source,
            "maker": {"name": "Acme" if n % 3 else "Umbrella"},
            "price": 9.5 + n,
            "link": f"https://x.example/{n}",
        }
        for n, (name, source) in enumerate(random_documents(60).items())
    }
    model = model_of(documents)
    save_model(model, tmp_path / "model")
    index = f"page-{uuid.uuid4().hex[:10]}"
    serve(engine, index, tmp_path / "store", documents, model)
    keyword = "maker.name.keyword"
    body = {
        "query": {"bool": {"must": {"match": {"text": "{{query}}"}}, "filter": [{"term": {keyword: "{{maker?}}"}}]}},
        "aggs": {"maker": {"terms": {"field": keyword}}},
    }
    (tmp_path / "body.json").write_text(json.dumps(body), encoding="utf-8")
    options = ("--engine", engine.spec, "--index", index, "--model", str(tmp_path / "model"), "--deadline-ms", "20000")
    page = ("--page", "title=maker.name", "--page", "facts=price", "--page", "facts=tag", "--page", "url=link")
    try:
        with ServiceProcess(*options, "--body", str(tmp_path / "body.json"), *page) as service:
            browser.get(f"http://127.0.0.1:{service.port}/")
            until(lambda: len(browser.find_elements("css selector", "#version option")) == 2, "the versions")
            assert violations(browser) == []
            browser.find_element("id", "query").send_keys(QUERY + "\n")
            everything = until(lambda: listed(browser), "reranked hits")
            assert browser.find_element("id", "body-name").text == "Your query"
            link = browser.find_element("css selector", "#model h3 a")
            assert link.text in ("Acme", "Umbrella")
            assert link.get_attribute("href").startswith("https://x.example/")
            first = documents[everything[0]]
            noted = browser.find_element("css selector", "#model .note").text.split(" · ")
            assert noted[1] == everything[0] and noted[3:] == [f"{first['price']:g}", first["tag"]], "all are separated"
            assert violations(browser) == []
            chosen = browser.find_element("xpath", "//div[@id='filters']//button[starts-with(., 'Umbrella')]")
            chosen.click()
            only = until(lambda: listed(browser) != everything and listed(browser), "filtered hits")
            assert {documents[name]["maker"]["name"] for name in only} == {"Umbrella"}
            pressed = browser.find_element("css selector", "#filters button[aria-pressed=true]")
            assert pressed.text.startswith("Umbrella") and "f.maker=Umbrella" in browser.current_url
            browser.back()
            until(lambda: listed(browser) == everything, "what stood there before")
            browser.find_element("id", "query").clear()
            browser.find_element("id", "query").send_keys("nosuchword\n")
            until(lambda: "No document" in browser.find_element("id", "model").text, "an empty page")
            assert not browser.find_element("id", "pages").is_displayed()
            browser.back()
            until(lambda: listed(browser) == everything, "the query before")
            check_narrow(browser)
    finally:
        browser.set_window_size(1280, 1600)
        prefer(browser)
        engine.delete_index(index)


@contextmanager
def small_service(folder: Path) -> Iterator[ServiceProcess]:
    """Start a service over an embedded index of 20 random documents in a folder."""
    documents = random_documents(20)
    model = model_of(documents)
    save_model(model, folder / "model")
    spec = f"tantivy:{folder / 'index'}"
    with closing(open_engine(spec)) as engine:
        serve(engine, "docs", folder / "store", documents, model)
    with ServiceProcess("--engine", spec, "--index", "docs", "--model", str(folder / "model")) as service:
        yield service


ALIKE = """
const [done, hits, others] = [arguments[arguments.length - 1], arguments[0], arguments[1]];
const of = (brands) => brands.map((brand) => ({ source: { brand } }));
import("/page/rows.js").then((rows) => done(rows.sameFacts(of(hits), of(others), { facts: ["brand", "price"] })));
"""


def test_a_page_of_one_brand_is_noted(browser: Any, tmp_path: Path) -> None:
    with small_service(tmp_path) as service:
        browser.get(f"http://127.0.0.1:{service.port}/")
        (said,) = browser.execute_async_script(ALIKE, ["Acme"] * 10, ["Acme"] * 7 + ["Umbrella"] * 3)
        assert said.startswith("All 10 reranked hits of this page have brand “Acme”") and "2 values" in said
        for hits, others in (
            (["Acme"] * 9 + ["Umbrella"], ["Acme", "Umbrella"]),
            (["Acme"] * 10, ["Acme"] * 10),
            (["Acme"] * 4, ["Acme", "Umbrella"]),
        ):
            assert browser.execute_async_script(ALIKE, hits, others) == []


def test_the_api_describes_itself_without_the_internet(browser: Any, tmp_path: Path) -> None:
    with small_service(tmp_path) as service:
        browser.get(f"http://127.0.0.1:{service.port}/docs")
        until(lambda: "routes in openapi.json" in browser.find_element("id", "status").text, "the routes")
        titles = [title.text for title in browser.find_elements("css selector", "#routes h2")]
        asked = service.ask("GET", "/openapi.json")[1]["paths"]
        assert sorted(titles) == sorted(f"{method.upper()} {path}" for path in asked for method in asked[path])
        assert violations(browser) == []
        section = browser.find_element("xpath", "//section[h2='POST /search']")
        assert "variables" in section.text
        # The example of each route with a body is one that the service takes.
        command = shlex.split(section.find_element("css selector", "pre").text.replace("\\\n", " "))
        status, answer = service.ask("POST", "/search", json.loads(command[-1]), timeout=30)[:2]
        assert status == 200 and answer["reranked"] is not None
        assert complaints(browser) == []


def _both(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return found if {row["query_attributes"]["ssi_mode"] for row in found} == {"rerank", "off"} else []


def _pairs_of(engine: Engine, session: str, path: Path) -> set[tuple[str, str]]:
    """Return query and better document of the pairs that the logged rows of a session make."""
    from reranker.clicks.importing import open_logs
    from reranker.clicks.pairs import make_pairs
    from reranker.service.sink import FileWriter

    writer = FileWriter(path / "log.ndjson")
    writer.write([(index, row) for index in ("ubi_queries", "ubi_events") for row in rows(engine, index, session)])
    writer.close()
    pairs = make_pairs(open_logs([path / "log.ndjson"]), PairConfig()).pairs()
    return {(pair.query, pair.better) for pair in pairs}
