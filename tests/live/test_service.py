"""The service as a process under load, on a real engine: slow and oversized clients, overload, swaps, a frozen engine.

Lengths are short by default; ``SSI_SERVICE_SECONDS``, ``SSI_SERVICE_SLOW``, ``SSI_SERVICE_SWAPS`` and
``SSI_SERVICE_PAUSE_S`` raise them. ``benchmarks/service_stress.py`` prints the figures at full length.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.releases import CONTROL_INDEX
from tests.live import service_drivers as drivers
from tests.live.freezing_proxy import FreezingProxy
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve
from tests.services import TEMPLATE

SECONDS = float(os.environ.get("SSI_SERVICE_SECONDS", "6"))
N_SLOW = int(os.environ.get("SSI_SERVICE_SLOW", "60"))
N_SWAPS = int(os.environ.get("SSI_SERVICE_SWAPS", "20"))
PAUSE_S = float(os.environ.get("SSI_SERVICE_PAUSE_S", "5"))
BUSY = float(os.environ.get("SSI_SERVICE_BUSY", "5"))
"""How many times longer than on a machine of its own things may take: clients and other tests use the same cores."""


@pytest.fixture(scope="module")
def served(elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine, index = open_engine(f"elasticsearch:{elasticsearch_url}"), f"service-{uuid.uuid4().hex[:10]}"
    documents = random_documents(300)
    try:
        yield serve(engine, index, tmp_path_factory.mktemp("store"), documents, model_of(documents))
    finally:
        engine.delete_index(index)
        if engine.index_names(CONTROL_INDEX):
            from reranker.engines.protocol import WriteOp

            engine.bulk(CONTROL_INDEX, [WriteOp("delete", index)])
        engine.close()


@pytest.fixture(scope="module")
def models(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(served.model, folder / "first")
    drivers.promote(served.engine, served.index, served.model.model_id, served.model.encoder_id)
    return folder


@pytest.fixture
def service(served: Served, models: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(*options(served, models), "--log-level", "warning") as process:
        yield process


def options(served: Served, models: Path, spec: str = "") -> list[str]:
    return ["--engine", spec or served.engine.spec, "--index", served.index, "--models", str(models)]


def test_slow_clients_are_closed_and_others_do_not_notice(service: ServiceProcess) -> None:
    found = drivers.slow_clients(service, N_SLOW, limit_s=20.0)
    assert found["longest_open_s"] <= 10.0
    assert found["good_failures"] == 0 and found["good_requests"] > 20
    assert found["p99_during_s"] <= 2 * BUSY * max(found["p99_before_s"], 0.02)
    assert abs(found["fds_left"]) <= 4


def test_too_much_is_refused_at_once_and_costs_no_memory(service: ServiceProcess) -> None:
    found = drivers.oversize(service, megabytes=64)
    for name, figures in found.items():
        assert figures["status"] in (400, 413, 415, 422, 431), name
        assert figures["seconds"] <= 1.0 * BUSY, name
        assert figures["grown_bytes"] <= 64e6, name
    status, answer = service.ask("POST", "/search", {"query": "word1"})
    assert status == 200 and answer["reranked"]


def test_overload_is_answered_in_time_and_work_goes_on(service: ServiceProcess) -> None:
    found = drivers.overload(service, factor=10.0, seconds=SECONDS, clients=8)
    if found["client_lag_s"] > 2.0:
        pytest.skip(f"this machine kept the client itself waiting for {found['client_lag_s']:.1f} s")
    assert set(found["replies"]) <= {200, 429, 503} and found["without_retry_after"] == 0
    assert found["longest_s"] <= 2.0 * BUSY
    assert found["goodput_share"] >= 0.8 / BUSY
    assert found["p99_after_s"] <= BUSY * max(found["p99_normal_s"], 0.05)


def test_sigterm_ends_what_is_in_work_and_then_the_process(service: ServiceProcess) -> None:
    found = drivers.stop_under_load(service, clients=8)
    assert found["exit_status"] == 0 and found["seconds"] <= 10.0
    assert found["answered_before"] > 20 and found["in_flight_failed"] == 0


def test_swaps_under_load_fail_no_request_and_mix_no_versions(served: Served, models: Path) -> None:
    candidates = drivers.Candidates(served, models)
    with ServiceProcess(
        *options(served, models), "--log-level", "warning", *drivers.SWAP_OPTIONS, settings=drivers.SWAP_POLLS
    ) as service:
        found = drivers.hot_swaps(service, served, candidates, N_SWAPS, connections=8, pause_s=0.2)
        log = service.log
    assert found["finished"] and found["failed"] == 0 and found["wrong_answers"] == 0
    assert found["versions_seen"] >= N_SWAPS // 3 and found["requests"] >= 100
    assert found["p99_swapping_s"] <= 2 * BUSY * max(found["p99_steady_s"], 0.05)
    assert found["rss_ratio"] <= 1.25
    refused = sum(number % 4 == 0 or number % 5 == 0 for number in range(1, N_SWAPS + 1))
    assert log.count('"result": "refused"') == refused and found["fallbacks"] == 0


def test_a_frozen_engine_costs_nobody_more_than_the_deadline(served: Served, models: Path, tmp_path: Path) -> None:
    target = urlsplit(served.engine.spec.partition(":")[2])
    deadline_ms = 400
    # With a body of the operator's, it searches without a model too: the live one may be of an earlier test.
    body = tmp_path / "body.json"
    body.write_text(json.dumps(TEMPLATE), encoding="utf-8")
    with (
        FreezingProxy(target.hostname or "", target.port or 0) as proxy,
        ServiceProcess(
            *options(served, models, f"elasticsearch:{proxy.url}"),
            *("--deadline-ms", str(deadline_ms)),
            *("--body", str(body)),
        ) as service,
    ):
        found = drivers.engine_stops(service, proxy.freeze, proxy.thaw, PAUSE_S, deadline_ms / 1000)
    assert set(found["replies"]) <= {200, 503} and found["replies"][503] > 10 and found["without_retry_after"] == 0
    assert found["over_deadline_s"] <= 0.1 * BUSY
    # Four clients wait for the deadline until two searches of the service's own have found nobody either.
    assert found["slow_answers"] <= 5 + 4 * 4 + PAUSE_S / 1.0
    assert found["first_good_after_s"] <= 5.0
    assert found["threads_left"] <= 2 and found["fds_left"] <= 8
