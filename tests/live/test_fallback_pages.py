"""Pages under short deadlines and after a restart of the engine: reranked, the engine's own, or errors, never empty."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from tests.contract.test_fallbacks import own_form
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.recipes import EngineKind
from tests.live.helpers import ask
from tests.live.service_process import ServiceProcess
from tests.served import model_of, random_documents, serve

N_SEARCHES = 24
N_AT_ONCE = 4


class Site:
    """An index of an engine that tests may restart, and a model of it."""

    def __init__(self, process: EngineProcess, kind: EngineKind, folder: Path) -> None:
        self.process, self.folder = process, folder
        documents = {name: {**source, "body": "filler " * 100} for name, source in random_documents(400).items()}
        self.engine = open_engine(f"{kind}:{process.url}")
        self.served = serve(self.engine, "pages", folder, documents, model_of(documents))
        save_model(self.served.model, folder / "model")

    def service(self, deadline_ms: int, *options: str) -> ServiceProcess:
        """Return a service with a deadline, to be started."""
        common = ["--engine", self.engine.spec, "--index", "pages", "--model", str(self.folder / "model"), "--proxy"]
        return ServiceProcess(*common, "--deadline-ms", str(deadline_ms), *options)


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def site(
    request: pytest.FixtureRequest,
    launchable: Callable[[EngineKind], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    launchable(request.param)
    with EngineProcess(request.param, heap="512m", java_options=QUICK_START) as process:
        site = Site(process, request.param, tmp_path_factory.mktemp("pages"))
        with closing(site.engine):
            yield site


def body_of(number: int) -> dict[str, Any]:
    """Return one of the searches: a large page with its sources and highlights."""
    clause = {"match": {"text": f"word{number % 7} word{number % 11}"}}
    return {"query": clause, "size": 200, "highlight": {"fields": {"text": {}}}}


def searched(site: Site, process: ServiceProcess, number: int) -> str:
    """Send a search; check its answer and return what it is: reranked, own, or the status of an error."""
    body = body_of(number)
    status, answer = process.ask("POST", "/pages/_search", body, timeout=60.0)
    if status != 200:
        assert status in (429, 503), answer
        return str(status)
    hits = answer["hits"]["hits"]
    assert hits and all(hit["_source"] and hit["highlight"] for hit in hits)
    own = ask(site.process.url, "POST", "/pages/_search", {**body, "timeout": "60s"})[1]
    if own_form(answer) == own_form(own):
        return "own"
    # Otherwise it is reranked: the same hits with the same content, in another order and with other scores.
    assert by_id(answer) == by_id(own)
    assert answer["hits"]["max_score"] == hits[0]["_score"]
    return "reranked"


def by_id(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the hits by id."""
    shown = json.loads(own_form(answer))["hits"]["hits"]
    return {hit["_id"]: (hit["_source"], hit["highlight"]) for hit in shown}


@pytest.mark.parametrize(("route", "deadlines_ms"), [("fetch", (20, 60, 150, 1000)), ("beside", (60, 400))])
def test_pages_have_their_content_whatever_the_deadline(site: Site, route: str, deadlines_ms: tuple[int, ...]) -> None:
    options = ["--route", "beside", "--store", str(site.served.store_path)] if route == "beside" else []
    for deadline_ms in deadlines_ms:
        with site.service(deadline_ms, *options) as process, ThreadPoolExecutor(N_AT_ONCE) as pool:
            seen = Counter(pool.map(lambda number, at=process: searched(site, at, number), range(N_SEARCHES)))
        assert seen.keys() <= {"reranked", "own", "429", "503"}
        assert deadline_ms < 1000 or seen["reranked"] + seen["own"] > 0


def test_pages_have_their_content_after_a_restart_of_the_engine(site: Site) -> None:
    with site.service(1000) as process:
        assert searched(site, process, 0) in ("reranked", "own", "503")
        site.process.restart()
        state = "/_cluster/health/pages?wait_for_status=yellow&timeout=60s"
        assert ask(site.process.url, "GET", state)[0] == 200
        # The first searches end at once, until the circuit breaker lets one through again.
        end = time.monotonic() + 60.0
        while (first := searched(site, process, 0)) == "503" and time.monotonic() < end:
            time.sleep(0.05)
        seen = Counter([first, *(searched(site, process, number) for number in range(1, N_SEARCHES))])
        assert seen["reranked"] and seen.keys() <= {"reranked", "own", "429", "503"}
