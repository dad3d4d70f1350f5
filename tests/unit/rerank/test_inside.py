"""Route inside and the first stage by impacts when the engine misbehaves; an engine that answers by a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.engines.dialects import OPENSEARCH
from reranker.engines.protocol import Capabilities, IndexInfo
from reranker.engines.vectors import LOST, version_fields
from reranker.errors import ConfigError, EncoderMismatch, EngineUnavailable, InputError, Unsupported
from reranker.records import Hit, SearchAnswer
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibration import ChosenAlpha
from reranker.rerank.candidates import EngineScript, encode_query
from reranker.rerank.signals import Signal
from tests.engines.memory import memory_engine
from tests.served import SIGNAL_FIELDS, Served, model_of, random_documents, serve, with_numbers

BODY: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}, "_source": ["title"]}
QUERY = "word3 word0"
CAPABLE = OPENSEARCH.capabilities("2.19.1")
Answer = Callable[[Mapping[str, Any], SearchAnswer | None], SearchAnswer]


class Scripted:
    """The memory engine, said to be OpenSearch: what it cannot do is answered by functions.

    Parameters
    ----------
    served : Served
    routes : tuple of str
        Fields that the index is said to have.
    """

    in_process = False

    def __init__(self, served: Served, routes: tuple[str, ...] = ("inside", "impacts")) -> None:
        self.real, self.served = served.engine, served
        self.properties = version_fields(served.model.encoder_id, served.model.encoder.n_dims, CAPABLE, routes)
        self.score: Answer | None = None
        self.rescore: Answer | None = None
        self.by_impacts: Answer | None = None
        self.bodies: list[dict[str, Any]] = []

    @property
    def spec(self) -> str:
        return "opensearch:http://localhost:9200"

    def capabilities(self) -> Capabilities:
        return CAPABLE

    def index_info(self, index: str) -> IndexInfo:
        return IndexInfo(index, self.properties)

    def search(self, index: str, body: Mapping[str, Any], **_: Any) -> SearchAnswer:
        self.bodies.append(dict(body))
        query = body.get("query", {})
        if "script_score" in query and self.score:
            return self.score(body, None)
        if "rank_feature" in json.dumps(query) and self.by_impacts:
            return self.by_impacts(body, None)
        if "rescore" in body and self.rescore:
            plain = {name: value for name, value in body.items() if name != "rescore"}
            return self.rescore(body, self.real.search(index, plain))
        return self.real.search(index, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    documents = random_documents(60)
    engine = memory_engine()
    yield serve(engine, "docs", tmp_path_factory.mktemp("memory"), documents, model_of(documents))
    engine.close()


def reranker_of(engine: Scripted, **settings: Any) -> Reranker:
    options = {"window": 30, "deadline_ms": None, "alpha": 0.7, "rescore_from": None} | settings
    served = engine.served
    return Reranker(engine, "docs", served.model, route="inside", settings=RerankSettings(**options))


def truth(served: Served, query: str = QUERY) -> dict[str, float]:
    """Return f of every document."""
    encoded = encode_query(served.model, query)
    documents = served.model.encoder.encode(list(served.documents.values()))
    words = dict(zip(encoded.vectors.ids.tolist(), encoded.vectors.weights.tolist(), strict=True))
    scores = documents.vectors @ encoded.vectors.vector
    for row in range(len(served.documents)):
        d = documents.rows[row]
        scores[row] += sum(words.get(i, 0.0) * w for i, w in zip(d.indices.tolist(), d.data.tolist(), strict=True))
    return dict(zip(served.documents, scores.tolist(), strict=True))


def mapped(x: float) -> float:
    return 1 + x if x >= 0 else 1 / (1 - x)


def scoring(served: Served, leave_out: frozenset[str] = frozenset()) -> Answer:
    """Return an engine's answer to `score_body`: f of the ids that it has vectors of."""
    f = truth(served)

    def answer(body: Mapping[str, Any], _: SearchAnswer | None) -> SearchAnswer:
        ids = body["query"]["script_score"]["query"]["bool"]["filter"][0]["ids"]["values"]
        hits = tuple(Hit(name, "docs", mapped(f[name])) for name in ids if name not in leave_out)
        return SearchAnswer(hits, len(hits))

    return answer


def fetched(served: Served) -> list[str]:
    settings = RerankSettings(window=30, deadline_ms=None, alpha=0.7)
    return [hit.id for hit in Reranker(served.engine, "docs", served.model, settings=settings).search(QUERY, BODY).hits]


def test_scores_of_the_engine_give_the_order_of_fetch(served: Served) -> None:
    engine = Scripted(served)
    engine.score = scoring(served)
    page = reranker_of(engine).search(QUERY, BODY)
    assert page.reranked
    assert [hit.id for hit in page.hits] == fetched(served)
    assert page.n_encoded == 0


def test_documents_the_engine_cannot_score_are_encoded_from_their_text(served: Served) -> None:
    engine = Scripted(served)
    engine.score = scoring(served, frozenset(fetched(served)[:3]))
    page = reranker_of(engine).search(QUERY, BODY)
    assert page.n_encoded == 3
    assert [hit.id for hit in page.hits] == fetched(served)


@pytest.mark.parametrize("bad", [None, float("nan"), -1.0, float("inf")])
def test_scores_that_no_script_gives_count_as_none(served: Served, bad: float | None) -> None:
    engine = Scripted(served)
    whole = scoring(served)

    def answer(body: Mapping[str, Any], _: SearchAnswer | None) -> SearchAnswer:
        hits = whole(body, None).hits
        return SearchAnswer((Hit(hits[0].id, "docs", bad), *hits[1:]), len(hits))

    engine.score = answer
    page = reranker_of(engine).search(QUERY, BODY)
    assert len(page.hits) == 10
    assert all(np.isfinite(hit.score) for hit in page.hits)
    assert {hit.id for hit in page.hits} <= set(served.documents)


def test_an_engine_that_does_not_score_leaves_its_own_order(served: Served) -> None:
    engine = Scripted(served)

    def fail(*_: Any) -> SearchAnswer:
        raise EngineUnavailable("timed out")

    engine.score = fail
    page = reranker_of(engine).search(QUERY, BODY)
    assert page.fallback
    assert page.cause == "documents" and "timed out" in str(page.reason)
    assert [hit.first_stage_rank for hit in page.hits] == list(range(1, 11))


def test_missing_fields_fall_back_and_name_the_command(served: Served) -> None:
    engine = Scripted(served, ("fetch",))
    reranker = reranker_of(engine, retrieve="impacts")
    page = reranker.search(QUERY, BODY)
    assert page.fallback
    assert "ssi revectorize" in str(page.reason)
    assert "--routes inside" in str(page.reason)
    with pytest.raises(EncoderMismatch, match="--routes inside"):
        reranker.check()
    by_impacts = Reranker(engine, "docs", served.model, settings=RerankSettings(retrieve="impacts"))
    with pytest.raises(EncoderMismatch, match="--routes impacts"):
        by_impacts.check()


def test_an_embedded_engine_is_refused(served: Served) -> None:
    with pytest.raises(Unsupported, match="--route fetch or beside"):
        EngineScript(served.engine, "docs", served.model.encoder_id).fields()


def weighed(signal: Mapping[str, Any], hit: Hit) -> float:
    """Return what the script adds for one signal."""
    numbers = hit.fields.get(signal["field"], [])
    share = np.interp(min(numbers), signal["x"], signal["s"]) if numbers else signal["neutral"]
    return float(signal["weight"] * share)


def rescoring(served: Served, n_shards: int = 1, lost: str = "") -> Answer:
    """Return an engine's answer to `rescore_body` over its own first-stage hits."""
    f = truth(served)

    def answer(body: Mapping[str, Any], own: SearchAnswer | None) -> SearchAnswer:
        assert own is not None
        script = body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"]
        query = {name: value for name, value in body.items() if name != "rescore"}
        window = served.engine.search("docs", {**query, "from": 0, "size": body["rescore"]["window_size"]}).hits
        added = {hit.id: sum(weighed(signal, hit) for signal in script.get("signals", ())) for hit in window}
        scores = {
            hit.id: mapped(script["alpha"] * f[hit.id] + script["lexical"] * (hit.score or 0) + added[hit.id])
            for hit in window
        }
        scores |= {lost: LOST} if lost in scores else {}
        hits = sorted(
            (Hit(h.id, "docs", scores[h.id], h.source, h.fields) for h in window), key=lambda h: -(h.score or 0)
        )
        return SearchAnswer(tuple(hits[: body["size"]]), own.total, raw={"_shards": {"total": n_shards, "failed": 0}})

    return answer


@pytest.mark.parametrize("n_shards", [1, 3])
def test_the_engine_orders_by_itself(served: Served, n_shards: int) -> None:
    engine = Scripted(served)
    engine.score, engine.rescore = scoring(served), rescoring(served, n_shards)
    reranker = reranker_of(engine, rescore_from=1)
    pages = [reranker.search(QUERY, BODY) for _ in range(2)]
    for page in pages:
        assert page.reranked
        assert [hit.id for hit in page.hits] == fetched(served)
        assert {hit.first_stage_rank for hit in page.hits} == {0}
        for hit in page.hits:
            assert hit.model_score == pytest.approx(truth(served)[hit.id], abs=1e-5)
    floors = [body for body in engine.bodies if body.get("from") == 29]
    rescores = [body for body in engine.bodies if "rescore" in body]
    # Several shards are noticed at the first search, and known at the second.
    assert (len(floors), len(rescores)) == ((0, 2) if n_shards == 1 else (2, 3))


def test_the_engine_counts_signals_and_its_own_score_is_told_apart(tmp_path: Path) -> None:
    documents = random_documents(60)
    numbered = with_numbers(documents)
    served = serve(memory_engine(), "docs", tmp_path, numbered, model_of(documents), properties=SIGNAL_FIELDS)
    engine = Scripted(served)
    engine.score, engine.rescore = scoring(served), rescoring(served)
    key = Calibration.key(body_hash(BODY), 30)
    knots = ((-60.0, 0.1), (0.0, 0.5), (50.0, 0.9))
    signals = (Signal("price", lower=True, weight=1.0, knots=knots), Signal("votes", weight=0.5, knots=knots))
    calibration = Calibration({key: 0.7}, {key: signals})
    pages = []
    for one, route, rescore_from in ((served.engine, "fetch", None), (engine, "inside", 1)):
        settings = RerankSettings(window=30, deadline_ms=None, rescore_from=rescore_from)
        reranker: Any = Reranker(
            one,
            "docs",
            served.model,
            route=route,  # type: ignore[arg-type]
            calibration=calibration,
            settings=settings,
        )
        pages.append(reranker.search(QUERY, BODY, explain=True))
    fetch, inside = pages
    assert any("rescore" in body and "docvalue_fields" in body for body in engine.bodies)
    assert [hit.id for hit in inside.hits] == [hit.id for hit in fetch.hits]
    for one, other in zip(inside.hits, fetch.hits, strict=True):
        assert one.first_stage_rank == 0
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.first_stage_score == pytest.approx(other.first_stage_score, abs=1e-3)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_the_body_for_the_engine_gives_the_order_that_is_served(served: Served, n_shards: int) -> None:
    engine = Scripted(served)
    engine.score, engine.rescore = scoring(served), rescoring(served, n_shards)
    fitted = Calibration({Calibration.key(body_hash(BODY), 30): 0.85})
    settings = RerankSettings(window=30, deadline_ms=None, rescore_from=1)
    reranker = Reranker(engine, "docs", served.model, route="inside", calibration=fitted, settings=settings)
    page = reranker.search(QUERY, BODY)
    body, alpha = reranker.engine_body(QUERY, BODY, stored="blend")
    script = body["rescore"]["query"]["rescore_query"]["script_score"]["script"]
    assert script["id"] == "blend" and alpha == ChosenAlpha(0.85, "calibrated") and script["params"]["alpha"] == 0.85
    assert (script["params"]["floor"] > 0) == (n_shards > 1)
    assert [hit.id for hit in engine.search("docs", {**body, "size": 10}).hits][: len(page.hits)] == [
        hit.id for hit in page.hits
    ]
    with pytest.raises(InputError, match="pins"):
        reranker.engine_body(QUERY, {"query": {"pinned": {"ids": ["d1"], "organic": BODY["query"]}}}, stored="blend")


def test_a_document_without_a_vector_is_seen_and_the_search_done_by_ids(served: Served) -> None:
    engine = Scripted(served)
    lost = fetched(served)[4]
    engine.score, engine.rescore = scoring(served, frozenset([lost])), rescoring(served, lost=lost)
    page = reranker_of(engine, rescore_from=1).search(QUERY, BODY)
    assert page.n_encoded == 1
    assert [hit.id for hit in page.hits] == fetched(served)


@pytest.mark.parametrize(
    ("settings", "body", "options"),
    [
        ({"window": 20, "rescore_from": 21}, BODY, {}),
        ({}, {**BODY, "sort": ["_score"]}, {}),
        ({}, BODY, {"from_": 25, "size": 10}),
    ],
)
def test_where_the_engine_must_not_order_it_does_not(
    served: Served, settings: dict[str, Any], body: dict[str, Any], options: dict[str, Any]
) -> None:
    engine = Scripted(served)
    engine.score, engine.rescore = scoring(served), rescoring(served)
    page = reranker_of(engine, **({"rescore_from": 1} | settings)).search(QUERY, body, **options)
    assert page.reranked
    assert not any("rescore" in body for body in engine.bodies)


def test_a_rescoring_that_fails_is_done_by_ids(served: Served) -> None:
    engine = Scripted(served)

    def fail(*_: Any) -> SearchAnswer:
        raise EngineUnavailable("too slow")

    engine.score, engine.rescore = scoring(served), fail
    page = reranker_of(engine, rescore_from=1).search(QUERY, BODY)
    assert page.reranked
    assert [hit.id for hit in page.hits] == fetched(served)


def test_a_first_stage_that_fails_leaves_words_alone(served: Served) -> None:
    engine = Scripted(served)

    def fail(*_: Any) -> SearchAnswer:
        raise EngineUnavailable("no impacts today")

    engine.score, engine.by_impacts = scoring(served), fail
    page = reranker_of(engine, retrieve="impacts").search(QUERY, BODY)
    assert page.reranked
    assert [hit.id for hit in page.hits] == fetched(served)
    assert any("no impacts today" in notice for notice in page.notices)


def test_a_body_whose_conditions_cannot_be_taken_over_is_searched_by_words_alone(served: Served) -> None:
    engine = Scripted(served)

    def never(*_: Any) -> SearchAnswer:
        raise AssertionError("documents were searched by impacts")

    engine.score, engine.by_impacts = scoring(served), never
    tenants = [{"bool": {"must": BODY["query"], "filter": {"exists": {"field": name}}}} for name in ("title", "text")]
    page = reranker_of(engine, retrieve="impacts").search(QUERY, {**BODY, "query": {"bool": {"should": tenants}}})
    assert page.reranked
    assert any("excludes documents by bool" in notice for notice in page.notices)


@pytest.mark.parametrize("bad", [{"retrieve": "vectors"}, {"rescore_from": 0}, {"rescore_from": 10_001}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RerankSettings(**bad)
