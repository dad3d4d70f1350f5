"""Three nodes that hold an index of three shards with one replica, and lose one of them by SIGKILL at every work.

The elected manager dies while documents are indexed, another node while they are revectorized and their owner edits
them, and the manager again while the service answers and another version goes live; each comes back seconds later. The
product is told the address of the one node that stays. The tests build on each other, in the order of the file.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from indexer.bulk import BulkLimits
from indexer.load import LoadOptions, load_documents
from indexer.renewal import RenewOptions, Target, sync
from indexer.versions import promote, register
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine
from reranker.engines.vectors import field_name
from reranker.errors import EngineError
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.rerank import Reranker, RerankSettings
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.processes import LOOPBACK, free_port
from tests.engines.recipes import EngineKind
from tests.live.helpers import ask, contents, digest, write_lines
from tests.live.load import Reply, closed_loop
from tests.live.service_drivers import QUERIES, same_encoder, search_body
from tests.live.service_process import ServiceProcess
from tests.served import TEXT_FIELDS, Documents, model_of, random_documents, serve

INDEX, PAGES, N_DOCUMENTS, WINDOW, SIZE = "shop", "pages", 1500, 50, 10
SHARDS: dict[str, Any] = {"index.number_of_shards": 3, "index.number_of_replicas": 1}
SERVING_S, AWAY_S = 24.0, 4.0
TOLERANCE = 1e-4
"""Of a score that two copies of a shard give."""


@dataclass
class Cluster:
    """The nodes, an engine that is told of the first, and what is indexed."""

    nodes: list[EngineProcess]
    engine: Engine
    documents: Documents
    model: RankingModel
    folder: Path

    def order(self) -> None:
        """Put the elected manager last; the first node stays the first unless it is the manager."""
        manager: Any = ask(self.nodes[0].url, "GET", "/_cat/master?h=node&format=json")[1]
        self.nodes.sort(key=lambda node: node.settings["node.name"] == manager[0]["node"])
        self.engine.close()
        self.engine = open_engine(f"{self.nodes[0].kind}:{self.nodes[0].url}", EngineSettings(read_timeout_s=30))

    def lose(self, place: int, away_s: float = AWAY_S) -> threading.Thread:
        """Return the thread that kills a node now, in the middle of requests, and brings it back."""

        def run() -> None:
            self.nodes[place].kill()
            time.sleep(away_s)
            self.nodes[place].start()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def wait_until_whole(self) -> None:
        """Return when every copy of every shard is there again."""
        wanted = "wait_for_status=green&wait_for_nodes=3&wait_for_no_relocating_shards=true&timeout=50s"
        for _ in range(2):
            _, health = ask(self.nodes[0].url, "GET", f"/_cluster/health?{wanted}")
            if health.get("status") == "green":
                return
        raise AssertionError(f"the cluster did not become whole: {health}")


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def cluster(
    request: pytest.FixtureRequest, launchable: Callable[[EngineKind], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    kind: EngineKind = request.param
    launchable(kind)
    ports = [free_port() for _ in range(3)]
    elasticsearch = kind == "elasticsearch"
    settings = {
        "discovery.type": "multi-node" if elasticsearch else "zen",
        "cluster.name": f"cluster-{uuid.uuid4().hex[:8]}",
        "discovery.seed_hosts": ",".join(f"{LOOPBACK}:{port}" for port in ports),
        f"cluster.initial_{'master' if elasticsearch else 'cluster_manager'}_nodes": "node-0,node-1,node-2",
    }
    nodes = [
        EngineProcess(
            kind,
            heap="512m",
            java_options=f"{QUICK_START} -Xms256m",
            settings={**settings, "node.name": f"node-{number}", "transport.port": str(port)},
        )
        for number, port in enumerate(ports)
    ]
    documents = random_documents(N_DOCUMENTS)
    folder = tmp_path_factory.mktemp("cluster")
    with ThreadPoolExecutor(len(nodes)) as pool:
        try:
            list(pool.map(EngineProcess.start, nodes))
            made = Cluster(nodes, open_engine(f"{kind}:{nodes[0].url}"), documents, model_of(documents), folder)
            made.order()
            yield made
            made.engine.close()
        finally:
            list(pool.map(EngineProcess.stop, nodes))


def test_no_document_is_lost_or_doubled_while_they_are_indexed(cluster: Cluster) -> None:
    cluster.engine.create_index(INDEX, {"properties": TEXT_FIELDS}, SHARDS)
    cluster.wait_until_whole()
    path = write_lines(cluster.folder / "docs.jsonl", cluster.documents)
    lost: list[threading.Thread] = []

    def progress(done: int, total: int | None) -> None:
        if not lost and done > N_DOCUMENTS // 4:
            lost.append(cluster.lose(2))

    options = LoadOptions(limits=BulkLimits(20), state_path=cluster.folder / "state")
    report = load_documents(cluster.engine, INDEX, path, options=options, progress=progress).bulk
    lost[0].join()
    cluster.wait_until_whole()
    assert (report.read, report.rejected, report.pending, report.stopped) == (N_DOCUMENTS, 0, 0, None)
    assert digest(contents(cluster.engine, INDEX)) == digest(cluster.documents)


def test_vectors_are_of_the_text_and_no_edit_of_the_owner_is_lost(cluster: Cluster) -> None:
    cluster.order()
    edits = {name: f"edited word{n % 50} word3" for n, name in enumerate(cluster.documents) if n % 10 == 0}
    begun = threading.Event()

    def edit() -> None:
        own = open_engine(cluster.engine.spec, EngineSettings(read_timeout_s=20))
        begun.wait(60)
        for name, text in edits.items():
            while not _stored(own, WriteOp("update", name, {"text": text})):
                time.sleep(0.1)
            time.sleep(0.02)
        own.close()

    owner = threading.Thread(target=edit)
    owner.start()
    lost: list[threading.Thread] = []

    def progress(done: int, total: int | None) -> None:
        begun.set()
        if not lost and done > N_DOCUMENTS // 4:
            lost.append(cluster.lose(1))

    target = Target(cluster.engine, INDEX, cluster.model)
    options = RenewOptions(limits=BulkLimits(25), max_docs_per_s=400)
    stops = []
    for _ in range(10):
        try:
            stop = sync(target, options, progress=progress).stopped
        except EngineError as error:
            stop = error
        if stop is None:
            break
        # What is written stays: the same command goes on.
        stops.append(str(stop))
        time.sleep(1.0)
    owner.join()
    lost[0].join()
    assert len(stops) <= 3, stops
    cluster.wait_until_whole()
    assert sync(target).stopped is None
    for name, text in edits.items():
        cluster.documents[name] = {**cluster.documents[name], "text": text}
    stored = contents(cluster.engine, INDEX)
    own = {name: {key: value for key, value in source.items() if key in TEXT_FIELDS} for name, source in stored.items()}
    assert own == cluster.documents
    documents = cluster.documents
    hashes = cluster.model.encoder.encode(list(documents.values()), list(documents)).source_hashes
    field = field_name(cluster.model.encoder_id, "src")
    assert [stored[name].get(field) for name in documents] == list(hashes)


def _stored(engine: Engine, op: WriteOp) -> bool:
    try:
        return engine.bulk(INDEX, [op])[0].status in (200, 201)
    except EngineError:
        return False


def test_searches_go_on_and_each_page_is_of_one_version(cluster: Cluster) -> None:
    cluster.order()
    # Candidates are those of BM25, by the words that a copy of a shard counts, with documents that are deleted and not
    # yet gone: in an index of its own each document is written once, so all copies count the same.
    served = serve(cluster.engine, PAGES, cluster.folder, cluster.documents, cluster.model, **SHARDS)
    cluster.wait_until_whole()
    first = cluster.model
    # Of the words that the first was made of: the edits have brought another.
    second = same_encoder(replace(served, documents=random_documents(N_DOCUMENTS)), 77)
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for model in (first, second):
        save_model(model, cluster.folder / "models" / model.model_id[:12])
        register(cluster.engine, PAGES, model, promote=False)
        reranker = Reranker(cluster.engine, PAGES, model, settings=RerankSettings(window=WINDOW, deadline_ms=None))
        for query in QUERIES:
            page = reranker.search(query, size=WINDOW)
            scores[model.model_id, query] = {hit.id: hit.score for hit in page.hits}
    promote(cluster.engine, PAGES, first.model_id)
    replies: list[tuple[float, int, Reply]] = []
    options = ["--engine", cluster.engine.spec, "--index", PAGES, "--models", str(cluster.folder / "models")]
    options += ["--window", str(WINDOW), "--log-level", "warning", "--deadline-ms", "2000"]
    with ServiceProcess(*options, settings={"poll_s": 0.5}) as service:
        started = time.perf_counter()

        def trouble() -> None:
            time.sleep(SERVING_S / 4)
            back = cluster.lose(2)
            for _ in range(20):
                try:
                    promote(cluster.engine, PAGES, second.model_id, force=True)
                    break
                except EngineError:
                    time.sleep(0.5)
            back.join()

        thread = threading.Thread(target=trouble)
        thread.start()
        asyncio.run(
            closed_loop(
                service.port,
                "/search",
                search_body,
                clients=3,
                seconds=SERVING_S,
                on_reply=lambda number, reply: replies.append((time.perf_counter() - started, number, reply)),
            )
        )
        thread.join()
        log = service.log
    good = [(at, number, reply.value) for at, number, reply in replies if reply.status == 200]
    assert {reply.status for _, _, reply in replies} <= {200, 429, 503}
    times = [0.0, *(at for at, _, _ in good), SERVING_S]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 10
    kinds = [_kind(answer, QUERIES[number % len(QUERIES)], scores) for _, number, answer in good]
    wrong = [answer for kind, (_, _, answer) in zip(kinds, good, strict=True) if kind == "wrong"]
    assert not wrong, (len(wrong), wrong[0], log[-2000:])
    assert kinds.count("whole") > len(kinds) / 2
    assert {answer["model_id"] for _, _, answer in good} == {first.model_id, second.model_id}


def _kind(answer: dict[str, Any], query: str, scores: dict[tuple[str, str], dict[str, float]]) -> str:
    """Return ``whole``; ``fallback`` or ``part`` where the answer says so; ``wrong`` for anything else."""
    hits = answer["hits"]
    if len({hit["id"] for hit in hits}) < len(hits):
        return "wrong"
    if any("returned partial results" in notice for notice in answer["notices"]):
        return "part"
    if answer["fallback"]:
        return "fallback" if [hit["first_stage_rank"] for hit in hits] == list(range(1, len(hits) + 1)) else "wrong"
    expected = scores[answer["model_id"], query]
    best = sorted(expected.values(), reverse=True)[:SIZE]
    theirs = [expected.get(hit["id"], float("inf")) for hit in hits]
    shown = [hit["score"] for hit in hits]
    same = len(shown) == len(best) and all(
        max(abs(score - its), abs(score - rank)) <= TOLERANCE
        for score, its, rank in zip(shown, theirs, best, strict=True)
    )
    return "whole" if same else "wrong"
