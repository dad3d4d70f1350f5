"""Fixtures for every test: real engines and real data, or a skip that says what is missing.

``SSI_REQUIRE`` (a comma list of `tests.engines.policy.REQUIRABLE`) turns such skips into failures. Tests are marked
``live`` (they start engines, services or child processes), ``papers``, and ``slow``, in their files or as live tests
beyond the contract of the engines.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.engines.assembly import EngineUnavailableError, ensure_distribution, missing_tools
from tests.engines.containers import container, docker_ready
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.policy import Means, choose_source, do_without, engine_reason, lacking, library
from tests.engines.processes import answers
from tests.engines.recipes import EngineKind, EngineRecipe, recipe_of

ROOT = Path(__file__).resolve().parents[1]
TEST_HEAP = "768m"
# How long an example takes depends on what else the machine does.
settings.register_profile("no-times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-times")


@pytest.fixture(scope="session")
def elasticsearch_url() -> Iterator[str]:
    """Give the address of an Elasticsearch that all tests of the session share: use index names of your own."""
    yield from _engine_url("elasticsearch")


@pytest.fixture(scope="session")
def opensearch_url() -> Iterator[str]:
    """Give the address of an OpenSearch that all tests of the session share: use index names of your own."""
    yield from _engine_url("opensearch")


@pytest.fixture(scope="session")
def launchable() -> Callable[[EngineKind], None]:
    """Give a function to call before ``EngineProcess(kind)``: it skips, or fails, where the launcher cannot work."""
    return _ensure_launchable


@pytest.fixture(scope="session")
def reranking_opensearch(reranking_launchable: None) -> Iterator[EngineProcess]:
    """Give an OpenSearch with the plugins of its own reranking, of which tests may restart the process."""
    with EngineProcess("opensearch", heap=TEST_HEAP, java_options=QUICK_START, rerank=True) as engine:
        yield engine


@pytest.fixture(scope="session")
def reranking_launchable() -> None:
    """Assemble the OpenSearch with the plugins of its own reranking; skip, or fail, where that cannot be done."""
    try:
        recipe = recipe_of("opensearch", rerank=True)
    except ValueError as error:
        do_without("opensearch", str(error))
    _ensure_assembled(recipe)


@pytest.fixture(scope="session")
def ssi_data() -> Path:
    """Give the folder of the real data sets: SSI_DATA, or ``../shared/data`` beside the repository."""
    folder = Path(os.environ.get("SSI_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        do_without("data", f"no data sets in {folder}: set SSI_DATA to their folder")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Give a headless Chromium."""
    webdriver = library("selenium.webdriver")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        do_without("chromium", "apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield opened
    opened.quit()


def _engine_url(kind: EngineKind) -> Iterator[str]:
    """Give an engine: the one named in the environment, else from a Docker image, else from the launcher."""
    means = _means(kind)
    source = choose_source(means)
    if source == "url":
        yield _checked(kind, means.url)
    elif source == "docker":
        with container(kind) as url:
            yield url
    elif source == "launcher":
        yield from _launched(kind)
    else:
        do_without(kind, engine_reason(kind, means.missing_tools))


def _means(kind: EngineKind) -> Means:
    if url := os.environ.get(f"SSI_TEST_{kind.upper()}_URL", ""):
        return Means(url=url.rstrip("/"))
    if docker_ready(kind):
        return Means(docker_ready=True)
    return Means(missing_tools=missing_tools(recipe_of(kind)))


def _checked(kind: EngineKind, url: str) -> str:
    if not answers(url):
        pytest.fail(f"SSI_TEST_{kind.upper()}_URL names {url}, where no engine answers")
    return url


def _ensure_launchable(kind: EngineKind) -> None:
    _ensure_assembled(recipe_of(kind))


def _ensure_assembled(recipe: EngineRecipe) -> None:
    try:
        ensure_distribution(recipe)
    except EngineUnavailableError as error:
        do_without(recipe.kind, str(error))


def _launched(kind: EngineKind) -> Iterator[str]:
    _ensure_launchable(kind)
    with EngineProcess(kind, heap=TEST_HEAP) as engine:
        yield engine.url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the package they are of, and by whether they start an engine, a service or a child process."""
    for item in items:
        place = item.path.relative_to(ROOT / "tests").parts[0]
        kinds = {"elasticsearch", "opensearch"} & {*re.split(r"\W+", item.name.partition("[")[2])}
        fixtures = {"elasticsearch_url", "opensearch_url", "launchable", "reranking_opensearch"} & {
            *getattr(item, "fixturenames", ())
        }
        if place == "papers":
            item.add_marker("papers")
        # Unit tests name the engines of scripted servers, which start with the test.
        if place == "live" or (kinds and place != "unit") or fixtures:
            item.add_marker("live")
            # `make test` asks real engines for their contract; all else that is live is left to `make slow`.
            if place != "contract":
                item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what tests were skipped for want of, and how many."""
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    if lines := lacking(reasons):
        terminalreporter.section("not tested here")
        for line in lines:
            terminalreporter.line(line)
