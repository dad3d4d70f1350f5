"""Texts made to do harm in a real browser: no script runs, nothing breaks out of its place, no policy is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indexer.versions import register
from reranker.accounts import LeftOut
from reranker.clicks.doctor import Diagnosis, Finding, RankRate, write_picture
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.service.auth import new_key
from reranker.training.report import render_training
from tests.live.pages import check_everywhere, complaints, until
from tests.live.service_process import ServiceProcess
from tests.served import BM25, Served, model_of, random_documents, serve
from tests.unit.retrain.test_report import findings as retraining
from tests.unit.training import test_report as training
from tests.unit.training.synthetic import write_documents

RAN = "document.title='ran';window.ran=1"
HOSTILE = (
    f"<script>{RAN}</script>",
    f'"><img src=x onerror="{RAN}">',
    f"'><svg/onload='{RAN}'>",
    f"</title></style></textarea></script><script>{RAN}</script>",
    f"javascript:{RAN}",
    f'<a href="javascript:{RAN}">x</a>',
    f'<iframe srcdoc="<script>parent.{RAN}</script>"></iframe>',
    "<style>*{display:none}</style><meta http-equiv=refresh content=0>",
    "\u202egnp.exe\u2066 \u200f",
    "{{query}} {{ 7*7 }} {% raw %} ${7*7} #{7*7} <%= 7*7 %> $title",
    '=HYPERLINK("http://evil.example")',
    "@SUM(1)|cmd",
    "&lt;b&gt; &amp;amp; &#60; \\u003cb\\u003e",
    "<!-- ]]> --> <![CDATA[ x",
    "a\tb\x0bc\x00d\x7f",
    "z\u0300\u0301\u0302" * 40,
    "\u4e2d\u6587" * 300,
)
LONG = "w" * 100_000
ALL = " ".join(HOSTILE)


def check_unharmed(browser: Any, say: str, errors: tuple[str, ...] = ()) -> None:
    """Fail where a script of a text ran, an element of a text is there, or the browser complains."""
    assert browser.execute_script("return window.ran") is None, say
    assert browser.title != "ran", say
    foreign = "iframe, object, embed, base, img[src='x'], meta[http-equiv=refresh], [onerror], [onload]"
    assert browser.find_elements("css selector", foreign) == [], say
    links = browser.execute_script("return [...document.querySelectorAll('a')].map((one) => one.protocol)")
    assert not [link for link in links if "javascript" in link], say
    assert [one for one in complaints(browser) if not any(known in one for known in errors)] == [], say


def shown(browser: Any) -> str:
    """Return all text of a page, its layout aside."""
    return str(browser.execute_script("return document.body.textContent"))


@pytest.mark.parametrize("text", [*HOSTILE, LONG], ids=lambda text: ascii(text)[:30])
def test_reports_show_hostile_texts_as_they_are(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from reranker.retrain.report import render_retraining
    from tests.unit.retrain import test_report as parts

    monkeypatch.setattr(parts, "NASTY", text)
    (tmp_path / "retraining.html").write_text(render_retraining(**retraining(engine=text)), encoding="utf-8")
    findings = (Finding("a", "warning", text), Finding("b", "ok", text))
    write_picture(Diagnosis(findings, {}, (RankRate(1, 100, 40), RankRate(2, 100, 20))), tmp_path / "doctor.html")
    sources = [{"id": name, **source} for name, source in training.DOCUMENTS.items()]
    sources[-1] |= {"title": text, "text": f"{text} word1"}
    documents = write_documents(tmp_path / "docs.jsonl", sources)
    model = replace(
        model_of(training.DOCUMENTS, lexical=BM25),
        training={"documents": 60, "preferences": 60, "schedule": {"rate_start": 0.05}},
    )
    report = training.report_of(left_out=(LeftOut(text, 1),), notes=(text,))
    page = render_training(model, report, documents, rejected={text: 2})
    (tmp_path / "training.html").write_text(page, encoding="utf-8")
    for name in ("retraining", "doctor", "training"):
        browser.get((tmp_path / f"{name}.html").as_uri())
        check_unharmed(browser, name)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), name
        kept = " ".join(text[:40].replace("\x00", "").split())
        assert len(text) > 1000 or kept in " ".join(shown(browser).replace("\ufffd", "").split()), (name, kept)


def test_reports_with_all_of_them_can_be_read_wide_and_narrow(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reranker.retrain.report import render_retraining
    from tests.unit.retrain import test_report as parts

    monkeypatch.setattr(parts, "NASTY", ALL)
    (tmp_path / "retraining.html").write_text(render_retraining(**retraining()), encoding="utf-8")
    write_picture(Diagnosis((Finding("a", "warning", ALL),), {}, (RankRate(1, 9, 4),)), tmp_path / "doctor.html")
    for name in ("retraining", "doctor"):
        browser.get((tmp_path / f"{name}.html").as_uri())
        check_everywhere(browser, f"hostile {name}")
        check_unharmed(browser, name)


# --- the pages of a service

IDS = (
    f"<script>{RAN}</script>",
    f'"><img src=x onerror={RAN}>',
    "=cmd|' /C calc'!A0",
    "{{query}}",
    "a/b?c#d",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an index whose documents are called and say hostile things, with one version."""
    path = tmp_path_factory.mktemp("site")
    documents = random_documents(40)
    for number, text in enumerate(HOSTILE):
        name = IDS[number] if number < len(IDS) else f"h{number}"
        documents[name] = {"title": text, "text": f"word3 word5 word11 {text}", "tag": text[:40]}
    model: RankingModel = model_of(documents)
    engine = open_engine(f"tantivy:{path / 'index'}")
    found = serve(engine, "docs", path, documents, model)
    save_model(found.model, path / "models" / "first")
    register(engine, "docs", found.model, promote=True)
    with closing(engine):
        yield found


def test_pages_of_the_service_show_hostile_texts_as_they_are(browser: Any, served: Served, tmp_path: Path) -> None:
    key, line = new_key("operator", "admin")
    (tmp_path / "keys").write_text(line)
    bearer = {"Authorization": f"Bearer {key}"}
    models = served.store_path.parent / "models"
    options = (
        "--engine",
        served.engine.spec,
        "--index",
        "docs",
        "--models",
        str(models),
        "--sink",
        str(tmp_path / "ubi.ndjson"),
        "--api-keys",
        str(tmp_path / "keys"),
        "--deadline-ms",
        "20000",
    )
    queries = [f"word3 {text}" for text in HOSTILE]
    with ServiceProcess(*options, settings={"poll_s": 300}) as service:
        for visitor in range(6):
            for number, query in enumerate(queries):
                # Few searches a session, or they count as a robot's.
                session = f"{HOSTILE[0]}{visitor}-{number}"
                asked = {"query": query, "session": session}
                status, answer, *_ = service.ask("POST", "/search", asked, bearer, timeout=30)
                assert status == 200, query
                hit = answer["hits"][0]
                thing = {"object": {"object_id": hit["id"]}, "position": {"ordinal": 1}}
                event = {
                    "action_name": "click",
                    "query_id": answer["query_id"],
                    "session_id": session,
                    "event_attributes": thing,
                }
                if visitor == 0:
                    assert service.ask("POST", "/events", {"events": [event]}, bearer)[0] == 202
        until(lambda: "ssi_sink_waiting 0.0" in service.ask("GET", "/metrics", headers=bearer)[1], "rows written")
        base = f"http://127.0.0.1:{service.port}"
        browser.get(f"{base}/operate")
        browser.get_log("browser")  # it asks for a key
        browser.execute_script("sessionStorage.setItem('ssi.key', arguments[0])", key)
        browser.refresh()
        until(lambda: "multi_match" in browser.find_element("id", "shapes").text, "the searches")
        check_unharmed(browser, "operate", errors=("401",))
        check_everywhere(browser, "hostile operate")
        for query in (*queries, LONG[:1_000]):
            browser.get(f"{base}/")
            browser.execute_script("sessionStorage.setItem('ssi.key', arguments[0])", key)
            browser.refresh()
            box = until(lambda: browser.find_element("id", "query"), "the search box")
            browser.execute_script("arguments[0].value = arguments[1]", box, query)
            browser.execute_script("document.getElementById('form').requestSubmit()")
            until(lambda: "Type a query" not in browser.find_element("id", "status").text, query[:60])
            if "word3" in query:
                until(lambda: browser.find_elements("css selector", "#model li"), query[:60])
            check_unharmed(browser, query[:60], errors=("401",))
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), query[:60]
