"""One client can neither walk round the service's gate nor block it nor end it: real engines, attacks and victims.

``SSI_ATTACK_S`` is the length of each attack in seconds. Figures are recorded as properties of the tests
(``pytest --junit-xml``), and printed with ``-s``.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reranker.artifacts import save_model
from reranker.engines import open_engine
from reranker.engines.base import Engine, WriteOp
from tests.hostile_bodies import hostile_bodies
from tests.live.hostile_load import (
    HOST,
    Attack,
    Caller,
    Sent,
    attack_at_rate,
    attack_without_pause,
    words,
)
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve
from tests.services import TEMPLATE
from tests.unit.service.test_gate import TAKEN, filled

ATTACK_S = float(os.environ.get("SSI_ATTACK_S", "4"))
CANARY = "zebracanary"
STALL_S = 0.5
GROWTH = 128 * 1024 * 1024
Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Site:
    """An index that is served, another one with the canary, and how `ssi serve` is started over the first."""

    served: Served
    other: str
    options: tuple[str, ...]

    @property
    def index(self) -> str:
        """Name of the served index."""
        return self.served.index

    def service(self, *options: str) -> ServiceProcess:
        """Return a service, to be started."""
        return ServiceProcess(*self.options, "--log-level", "error", *options)


def site_over(engine: Engine, folder: Path, n: int = 1500) -> Site:
    index, other = f"attack-{uuid.uuid4().hex[:8]}", f"secret-{uuid.uuid4().hex[:8]}"
    documents = random_documents(n)
    served = serve(engine, index, folder, documents, model_of(documents, n_dims=64))
    save_model(served.model, folder / "model")
    secret = {"text": f"{CANARY} word1", "title": CANARY, "tag": "x", "secret": ["x", CANARY], "path": CANARY}
    engine.create_index(other, {"properties": {"secret": {"type": "keyword"}, "tag": {"type": "keyword"}}})
    engine.bulk(other, [WriteOp("index", "1", secret)])
    engine.refresh(other)
    return Site(served, other, ("--engine", engine.spec, "--index", index, "--model", str(folder / "model")))


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    engine = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    found = site_over(engine, tmp_path_factory.mktemp("attack"))
    yield found
    engine.delete_index(found.index)
    engine.delete_index(found.other)
    engine.close()


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[ServiceProcess]:
    with site.service("--proxy") as service:
        yield service


@pytest.fixture
def record(record_property: Record, request: pytest.FixtureRequest) -> Record:
    def keep(name: str, value: object) -> None:
        record_property(name, value)
        print(f"{request.node.name} {name}: {value}")  # noqa: T201

    return keep


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- nobody walks round the gate


def routes_of(index: str, proxied: bool) -> dict[str, Callable[[dict[str, Any]], Sent]]:
    """Return how a body is sent to each route that takes one."""
    own: dict[str, Callable[[dict[str, Any]], Sent]] = {
        "/search": lambda body: ("/search", as_json({"query": f"{CANARY} word3", "body": body}))
    }
    if not proxied:
        return own

    def line(body: dict[str, Any]) -> bytes:
        return as_json(filled(body)) + b"\n"

    return own | {
        "_search": lambda body: (f"/{index}/_search", line(body)),
        "_count": lambda body: (f"/{index}/_count", line(body)),
        "_msearch": lambda body: (f"/{index}/_msearch", b"{}\n" + line(body)),
        "_msearch of all": lambda body: ("/_msearch", as_json({"index": index}) + b"\n" + line(body)),
    }


def statuses_of(status: int, content: bytes) -> list[int]:
    """Return the status of an answer, or those of the searches in it."""
    value = json.loads(content)
    return [one["status"] for one in value["responses"]] if status == 200 and "responses" in value else [status]


@pytest.mark.parametrize("proxied", [False, True])
def test_hostile_bodies_are_refused_and_bring_nothing_of_another_index(
    site: Site, proxied: bool, record: Record
) -> None:
    bodies = list(hostile_bodies(other=site.other))

    async def send(service: ServiceProcess) -> int:
        caller, n = Caller(service.port, HOST), 0
        for name, sent in routes_of(site.index, proxied).items():
            for body in bodies:
                status, content, _ = await caller.ask(*sent(body))
                assert CANARY.encode() not in content, (name, body)
                assert set(statuses_of(status, content)) <= {403, 422}, (name, body, status, content)
                n += 1
        caller.close()
        return n

    with site.service(*(["--proxy"] if proxied else [])) as service:
        record("refused", asyncio.run(send(service)))


def test_urls_and_headers_of_searches_reach_no_other_index(site: Site, proxy: ServiceProcess, record: Record) -> None:
    index, other, n = site.index, site.other, 0
    match = {"query": {"match": {"text": CANARY}}}
    queries = [
        f"q={CANARY}", f"q=_index:{other}", f"q=*&sort=_index&index={other}", "sort=_index,text", "docvalue_fields=*",
        "stored_fields=_source,*", f"index={other}&q={CANARY}", f"q={CANARY}&expand_wildcards=all", f"q={CANARY}&df=a",
        f"source={json.dumps(match)}&source_content_type=application/json", f"q={CANARY}&routing={other}",
        f"q={CANARY}&filter_path=**", f"q={CANARY}&df=secret", f"q={CANARY}&_source_includes=secret",
        f"scroll=1m&q={CANARY}", f"q={CANARY}&search_pipeline=x", f"q={CANARY}&preference=_shards:0",
        f"q={CANARY}&ignore_unavailable=true",
    ]  # fmt: skip
    paths = [
        f"{other}/_search", f"{index},{other}/_search", f"{index}%2C{other}/_search", "*/_search", "_all/_search",
        "_search", f"{index}/../{other}/_search", f"{index}%2F..%2F{other}/_search", f"{other}/_count", "_count",
        f"{other}/_msearch", f"{other}/_doc/1", f"{other}/_source/1", f"{index}/_mget", "_mget", "_search/scroll",
        "_sql", "_query", "_plugins/_sql", f"{other}/_explain/1", f"{other}/_async_search", "_cat/indices", f"{other}",
        f"{index}/_search/template", f"{index}/_knn_search", f"{index}/_mvt/place/1/1/1", f"<{other}>/_search",
        f"cluster:{other}/_search", f"{index},-x,{other}/_search",
    ]  # fmt: skip
    headers: list[dict[str, Any]] = [
        {"index": other}, {"index": [index, other]}, {"index": f"{index},{other}"}, {"indices": [other]},
        {"index": "*"}, {"index": None}, {"index": index, "source": other}, {"index": index, "index_": other},
        {"index": index, "ccs_minimize_roundtrips": True, "q": CANARY},
    ]  # fmt: skip
    asked: list[tuple[str, bytes | None]] = [(f"/{path}", as_json(match)) for path in paths]
    asked += [(f"/{index}/{api}?{query}".replace(" ", ""), None) for query in queries for api in ("_search", "_count")]
    asked += [(path, as_json(head) + b"\n" + as_json(match) + b"\n")
              for head in headers for path in ("/_msearch", f"/{index}/_msearch")]  # fmt: skip
    for path, body in asked:
        for method in ("GET", "POST"):
            _, answer = proxy.ask(method, path, body)
            text = answer if isinstance(answer, str) else json.dumps(answer)
            assert CANARY not in text and other not in text.replace(path, ""), (path, body, text[:500])
            n += 1
    record("requests", n)


def test_ordinary_bodies_reach_the_engine(site: Site, proxy: ServiceProcess, record: Record) -> None:
    found: dict[int, int] = {}
    for body in TAKEN:
        own = json.loads(json.dumps(body).replace('"docs"', json.dumps(site.index)))
        status, answer = proxy.ask("POST", f"/{site.index}/_search", own)
        # The engine's own errors: for want of a field, or 500 for a body that it takes and then fails on.
        wanted = {200: None, 400: "body_refused", 502: "engine_failed"}
        assert wanted.get(status, "") == (answer["error"]["type"] if status != 200 else None), (own, status, answer)
        found[status] = found.get(status, 0) + 1
    record("statuses", found)
    assert found[200] >= len(TAKEN) // 2


# --- nobody takes the service from others


def refused_bodies(index: str) -> list[tuple[str, Sent]]:
    """Return bodies that the gate refuses."""
    bodies = list(hostile_bodies())[::7]
    return [("refused", send(body)) for body in bodies for send in routes_of(index, True).values()]


def slow_bodies(index: str) -> list[tuple[str, Sent]]:
    """Return bodies that pass the gate and make the engine fail, or take it long."""
    deep: dict[str, Any] = {"terms": {"field": "tag", "size": 4}}
    for name, size in (("tag", 5), ("_id", 50), ("_id", 50)):
        deep = {"terms": {"field": name, "size": size}, "aggs": {"a": deep}}
    text = {"match": {"text": "word1 word2"}}
    regexp = "(.*[wo]{1,9}.*[rd]{1,9}.*){1,6}"
    bodies: dict[str, dict[str, Any]] = {
        "overflowing weight": {"query": {"multi_match": {"query": "word1", "fields": ["text^3e38", "title^3e38"]}}},
        "overflowing boost": {"query": {"query_string": {"query": "text:word1^1e38 text:word2^1e38"}}},
        "regexp": {"query": {"regexp": {"text": {"value": regexp, "max_determinized_states": 10_000}}}},
        "many regexps": {"query": {"bool": {"should": [
            {"regexp": {"text": {"value": f".*{n}?[a-z]*(o|r){{1,20}}.*"}}} for n in range(300)]}}},
        "deep paging": {"query": text, "from": 9_000, "size": 1_000},
        "nested terms": {"size": 0, "query": {"match_all": {}}, "aggs": {"a": deep}},
        "wildcards": {"query": {"bool": {"should": [{"wildcard": {"text": f"*{n % 10}*"}} for n in range(900)]}}},
        "wildcard text": {"query": {"query_string": {"query": " ".join(["*o*r*d*"] * 900), "fields": ["text"]}}},
        "fuzzy": {"query": {"bool": {"should": [
            {"fuzzy": {"text": {"value": f"wrod{n}", "fuzziness": 2, "max_expansions": 1000}}} for n in range(600)]}}},
        "highlight": {"query": text, "size": 1_000, "highlight": {"fields": {"*": {
            "number_of_fragments": 100, "type": "plain"}}}},
        "more like this": {"size": 1000, "query": {"more_like_this": {
            "fields": ["text", "title"], "like": [{"_id": f"d{n}"} for n in range(1000)], "max_query_terms": 1000,
            "min_term_freq": 1, "min_doc_freq": 1}}},
    }  # fmt: skip
    sent = [(name, (f"/{index}/_search", as_json(body))) for name, body in bodies.items()]
    several = (bodies[name] for name in ("wildcards", "nested terms", "highlight") * 8)
    sent.append(("msearch", (f"/{index}/_msearch", b"".join(b"{}\n" + as_json(body) + b"\n" for body in several))))
    asked = {name: json.loads(json.dumps(body).replace("word1", "{{query}}")) for name, body in bodies.items()}
    for name, body in asked.items():
        if "{{query}}" not in json.dumps(body):
            body["query"] = {"bool": {"must": [{"match": {"text": "{{query}}"}}], "should": [body["query"]]}}
        sent.append((f"/search {name}", ("/search", as_json({"query": "word1 word2", "body": body, "size": 1000}))))
    return sent


def ordinary(number: int) -> Sent:
    """Return an ordinary search."""
    return "/search", as_json({"query": words(number), "body": TEMPLATE, "size": 10})


def report(found: Attack, record: Record) -> None:
    """Record what an attack did."""
    record("victims", dict(found.victims.statuses))
    record("victims' success", round(found.victims.success, 4))
    if found.victims.seconds:
        record("victims' median s", round(statistics.median(found.victims.seconds), 3))
        record("victims' longest s", round(found.victims.longest_s, 3))
    record("ready or health", dict(found.health.statuses))
    record("its longest s", round(found.health.longest_s, 3))
    record("attacker", dict(found.attacker.statuses))
    record("attacker by kind", dict(sorted(found.attacker.kinds.items())))
    record("lag of this process s", round(found.lag_s, 3))


@pytest.mark.parametrize("kind", ["refused", "slow"])
def test_a_client_that_sends_bad_bodies_costs_others_no_answer(
    site: Site, proxy: ServiceProcess, kind: str, record: Record
) -> None:
    requests = {"refused": refused_bodies, "slow": slow_bodies}[kind](site.index)
    found = attack_at_rate(proxy, requests, ordinary, seconds=5 * ATTACK_S if kind == "slow" else ATTACK_S)
    report(found, record)
    assert found.victims.success >= 0.99 and sum(found.victims.statuses.values()) > 10 * ATTACK_S
    assert set(found.health.statuses) == {200}


# --- nobody ends the service, or keeps it from answering


MIB = 1024 * 1024
N_EVENTS = 100


def padded(value: dict[str, Any], name: str, size: int = 8 * MIB - 1024) -> bytes:
    """Return a body whose text ``name`` fills it up to ``size`` bytes."""
    room = size - len(as_json({**value, name: ""}))
    return as_json({**value, name: ("word1 word22 wordx " * (room // 19 + 1))[:room]})


def worst_bodies(index: str) -> list[tuple[str, Sent]]:
    """Return the worst bodies that are within all limits."""
    texts = [words(n, 100)[:800] for n in range(10_000)]
    nested: Any = "word1"
    for _ in range(58):
        nested = [nested]
    query = {"query": "word1 word2"}
    values = [{**{f"f{n}": "a" for n in range(8)}, "text": "word1" + "a" * 690} for n in range(10_000)]
    clauses = {"bool": {"should": [{"match": {"text": f"word{n} x"}} for n in range(1000)]}}
    search = {"query": clauses, "size": 100, "_source": ["text"]}
    clicks = [
        {"action_name": "click", "query_id": f"q{n}", "session_id": f"s{n}", "event_attributes": {
            "object": {"object_id": f"d{n}"}}, "user_query": "a" * 300}
        for n in range(N_EVENTS)
    ]  # fmt: skip
    bodies: list[tuple[str, Sent]] = [
        ("many values", ("/v2/rerank", as_json({**query, "documents": values, "return_documents": True}))),
        ("one huge text", ("/v1/rerank", as_json({**query, "documents": ["word1 word22 " * (8 * MIB // 13 - 100)]}))),
        ("one huge object", ("/v2/rerank", as_json({**query, "documents": [
            {"text": ["word1 word22 " * 1000] * 610}], "return_documents": True}))),
        ("10,000 texts", ("/rerank", as_json({**query, "texts": texts, "return_text": True}))),
        ("nested", ("/v2/rerank", as_json({**query, "documents": [{"text": nested}] * 1600}))),
        ("search of many clauses", ("/search", as_json({"query": "word1", "body": {
            **search, "query": {"bool": {"must": [{"match": {"text": "{{query}}"}}], "should": [clauses]}}}}))),
        ("_search of many clauses", (f"/{index}/_search", as_json(search))),
        ("embed 10,000 texts", ("/embed", as_json({"inputs": texts}))),
        ("embed 10,000 queries", ("/embed", as_json({"inputs": texts, "prompt_name": "query"}))),
        ("embed a huge query", ("/embed", padded({"prompt_name": "query"}, "inputs"))),
        ("embed a huge text", ("/embed", padded({}, "inputs"))),
        ("events", ("/events", as_json({"events": clicks}))),
        ("msearch", (f"/{index}/_msearch", (b"{}\n" + as_json(search) + b"\n") * 100)),
    ]  # fmt: skip
    for name, (path, body) in bodies:
        most = 8 * MIB if "msearch" in path or "rerank" in path or path == "/embed" else 64 * 1024
        assert len(body) <= most and (name == "msearch" or body.count(b",") < 100_000), (
            name,
            len(body),
            body.count(b","),
        )
    return bodies


def usual_s(service: ServiceProcess, n: int = 20) -> float:
    """Return the median seconds of ordinary searches, all of which are answered."""
    seconds = list[float]()
    for number in range(n):
        path, body = ordinary(number)
        started = time.perf_counter()
        status, answer = service.ask("POST", path, body)
        seconds.append(time.perf_counter() - started)
        assert status == 200 and answer["reranked"], answer
    return statistics.median(seconds)


def test_the_worst_bodies_that_are_legal_neither_stall_nor_fill_the_service(
    site: Site, tmp_path: Path, record: Record
) -> None:
    bodies = worst_bodies(site.index)
    with site.service("--proxy", "--sink", str(tmp_path / "events.ndjson")) as service:
        before_s = usual_s(service)
        attack_without_pause(service, bodies, seconds=max(ATTACK_S, 6.0))
        warm = service.rss
        found = attack_without_pause(service, bodies, seconds=7.5 * ATTACK_S)
        grown = service.rss - warm
        after_s = usual_s(service)
        report(found, record)
        record("memory when warm, MiB", round(warm / MIB))
        record("growth, MiB", round(grown / MIB))
        record("usual s before and after", (round(before_s, 4), round(after_s, 4)))
        if os.environ.get("SSI_ATTACK_EACH"):
            for kind, sent in bodies:
                each = attack_without_pause(service, [(kind, sent)], seconds=3)
                record(
                    f"alone: {kind}",
                    (
                        each.attacker.kinds,
                        round(each.health.longest_s, 3),
                        service.rss // MIB,
                        round(each.attacker.longest_s, 2),
                    ),
                )
    assert set(found.health.statuses) == {200} and found.health.longest_s <= STALL_S
    assert grown <= GROWTH
    assert after_s <= 3 * max(before_s, 0.02)
    assert found.attacker.statuses[500] == 0 and found.attacker.statuses[200] > 0
