"""The operators' page and the reports in a real browser: what they show, and that nothing breaks a rule of access."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indexer.versions import promote, register, rollback
from reranker.clicks.doctor import Diagnosis, Finding, RankRate, write_picture
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.service.auth import new_key
from reranker.training.report import render_training
from tests.live.pages import check_everywhere, complaints, until, violations
from tests.live.service_process import ServiceProcess
from tests.served import BM25, Served, model_of, random_documents, serve
from tests.services import sibling
from tests.unit.retrain.test_report import findings as retraining
from tests.unit.training import test_report as training
from tests.unit.training.synthetic import write_documents

QUERIES = ("word3 word11", "word5", "word2 word7 word9")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an index with two versions registered, the first one live, and what an operator's machine holds."""
    path = tmp_path_factory.mktemp("site")
    documents = random_documents(60)
    engine = open_engine(f"tantivy:{path / 'index'}")
    served = serve(engine, "docs", path, documents, model_of(documents))
    second = sibling(served, 7)
    save_model(served.model, path / "models" / "first")
    save_model(second, path / "models" / "second")
    register(engine, "docs", served.model, promote=True)
    register(engine, "docs", second, promote=False)
    with closing(engine):
        yield served


@pytest.fixture
def site(served: Served, tmp_path: Path) -> Iterator[tuple[ServiceProcess, str]]:
    """Give a running service, and the key of an admin."""
    key, line = new_key("operator", "admin")
    (tmp_path / "keys").write_text(line)
    models = served.store_path.parent / "models"
    options = ("--engine", served.engine.spec, "--index", "docs", "--models", str(models))
    more = (
        "--sink",
        str(tmp_path / "ubi.ndjson"),
        "--api-keys",
        str(tmp_path / "keys"),
        "--deadline-ms",
        "20000",
    )
    with ServiceProcess(*options, *more, settings={"poll_s": 300}) as service:
        yield service, key


def visit(service: ServiceProcess, key: str) -> None:
    """Search as eight visitors do; each second one clicks."""
    shown = {"Authorization": f"Bearer {key}"}
    for visitor in range(8):
        for query in QUERIES:
            asked = {"query": query, "session": f"s{visitor}"}
            answer = service.ask("POST", "/search", asked, shown, timeout=30)[1]
            hit = answer["hits"][visitor % 3]
            thing = {"object": {"object_id": hit["id"]}, "position": {"ordinal": hit["rank"]}}
            event = {
                "action_name": "click",
                "query_id": answer["query_id"],
                "session_id": f"s{visitor}",
                "event_attributes": thing,
            }
            if visitor % 2:
                assert service.ask("POST", "/events", {"events": [event]}, shown)[0] == 202
    until(lambda: "ssi_sink_waiting 0.0" in service.ask("GET", "/metrics", headers=shown)[1], "the clicks written")


def text_of(browser: Any, part: str) -> str:
    return str(browser.find_element("id", part).text)


def test_the_page_asks_for_a_key_and_follows_the_live_version(
    browser: Any, served: Served, site: tuple[ServiceProcess, str]
) -> None:
    service, key = site
    first, second = served.model.model_id, sibling(served, 7).model_id
    browser.get(f"http://127.0.0.1:{service.port}/operate")
    until(lambda: "an API key is needed" in text_of(browser, "status"), "the question for a key")
    assert violations(browser) == []
    browser.find_element("id", "key").send_keys(key + "\n")
    until(lambda: first[:12] in text_of(browser, "status"), "the version that answers")
    promote(served.engine, "docs", second)
    service.ask("POST", "/admin/reload", headers={"Authorization": f"Bearer {key}"})

    def shows_the_new() -> bool:
        browser.refresh()
        until(lambda: "has been served since" in text_of(browser, "status"), "the status")
        return second[:12] in text_of(browser, "status")

    until(shows_the_new, "the new version")
    assert f"previous: {first[:12]}" in text_of(browser, "versions")
    rollback(served.engine, "docs")
    assert [message for message in complaints(browser) if "401" not in message] == []


def test_every_part_is_shown_wide_narrow_light_and_dark(
    browser: Any, served: Served, site: tuple[ServiceProcess, str]
) -> None:
    service, key = site
    visit(service, key)
    browser.get(f"http://127.0.0.1:{service.port}/operate")
    browser.execute_script("sessionStorage.setItem('ssi.key', arguments[0])", key)
    browser.refresh()
    until(lambda: "multi_match" in text_of(browser, "shapes"), "the searches")
    latency = {row.text.split()[0] for row in browser.find_elements("css selector", "#searches tbody tr")}
    assert {"/search", "candidates", "score", "page"} <= latency
    assert "by quarter hour" in text_of(browser, "searches")
    plots = [one.get_attribute("aria-label") for one in browser.find_elements("css selector", "#searches svg")]
    assert [label.partition(",")[0] for label in plots] == ["Latency p95", "Clicks per search", "Fallbacks"]
    assert "highest 0.50, latest 0.50" in plots[1], "each second visitor clicks"
    assert len(browser.find_elements("css selector", "#searches svg .bar")) == 3
    shapes = text_of(browser, "shapes")
    assert "multi_match: text, multi_match: title" in shapes and "24 none" in shapes
    assert "ssi calibrate --body FILE" in shapes
    browser.find_element("css selector", "nav a[href='#shapes']").click()
    assert browser.current_url.endswith("#shapes")
    browser.back()
    assert browser.current_url.endswith("/operate")
    check_everywhere(browser, "operate")


def test_the_page_says_why_it_cannot_be_used_without_keys(browser: Any, served: Served) -> None:
    models = served.store_path.parent / "models"
    with ServiceProcess("--engine", served.engine.spec, "--index", "docs", "--models", str(models)) as service:
        browser.get(f"http://127.0.0.1:{service.port}/operate")
        until(lambda: "--api-keys" in text_of(browser, "status"), "the reason")
        assert not browser.find_element("id", "parts").is_displayed()
        check_everywhere(browser, "without keys")


def test_reports_and_the_doctors_page_are_read_by_all(browser: Any, tmp_path: Path) -> None:
    from reranker.retrain.report import render_retraining

    rates = tuple(RankRate(rank, 1000, 400 // rank) for rank in range(1, 21))
    told = (Finding("a", "ok", "All is well."), Finding("b", "warning", "Mend this."), Finding("c", "unsound", "No."))
    write_picture(Diagnosis(told, {}, rates), tmp_path / "doctor.html")
    (tmp_path / "retraining.html").write_text(render_retraining(**retraining()), encoding="utf-8")
    sources = [{"id": name, **source} for name, source in training.DOCUMENTS.items()]
    documents = write_documents(tmp_path / "docs.jsonl", sources)
    model = model_of(training.DOCUMENTS, lexical=BM25)
    model = replace(model, training={"documents": 60, "preferences": 60, "schedule": {"rate_start": 0.05}})
    page = render_training(model, training.report_of(), documents, rejected={"bad json": 2})
    (tmp_path / "training.html").write_text(page, encoding="utf-8")
    for name in ("doctor", "retraining", "training"):
        browser.get((tmp_path / f"{name}.html").as_uri())
        check_everywhere(browser, name)
