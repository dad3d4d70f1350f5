"""Search with reranking over the engine in memory: one order, exact pages, and never worse than the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from reranker.deadline import Deadline
from reranker.engines.protocol import MAX_HITS, Engine
from reranker.engines.wire import while_waiting
from reranker.errors import ConfigError, EncoderMismatch, EngineUnavailable, InputError
from reranker.records import Hit, RankedHit, Reason, ReasonKind, SearchAnswer
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash, default_template
from reranker.rerank.calibration.kept import DEFAULT_ALPHA
from reranker.rerank.candidates import documents_of
from reranker.rerank.search import needs_the_query, shows_source_alone
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from tests.engines.memory import memory_engine
from tests.served import Served, model_of
from tests.services import small_index

BODY = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}}}
QUERY = "word3 word11 word0"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("memory"), memory_engine(), n=150)
    yield served
    served.engine.close()


def reranker_of(served: Served, route: str = "fetch", engine: Engine | None = None, **settings: Any) -> Reranker:
    settings.setdefault("deadline_ms", None)
    return Reranker(
        engine or served.engine,
        served.index,
        served.model,
        route=route,  # type: ignore[arg-type]
        store=served.store if route == "beside" else None,
        settings=RerankSettings(**settings),
    )


def expected_order(served: Served, window: int, alpha: float, body: dict[str, Any]) -> list[tuple[str, float]]:
    """Score and sort by the definition, with nothing of the code under test but the encoder."""
    filled = {"query": {"multi_match": {**body["query"]["multi_match"], "query": QUERY}}}
    answer = served.engine.search(served.index, {**filled, "size": 1000})
    model = served.model
    q = model.encode_queries([QUERY]).rows
    scale = sum(float(x) for x in model.query_vocabulary.idf_of(q.indices))
    scored = []
    for place, hit in enumerate(answer.hits[:window]):
        d = model.encoder.encode([served.documents[hit.id]])
        learned = float(model.encode_queries([QUERY]).vectors[0].astype(np.float64) @ d.vectors[0].astype(np.float64))
        weights = dict(zip(d.rows.indices.tolist(), d.rows.data.tolist(), strict=True))
        same = sum(float(w) * weights.get(i, 0.0) for i, w in zip(q.indices.tolist(), q.data.tolist(), strict=True))
        assert hit.score is not None
        scored.append((-(alpha * (learned + same) + (1 - alpha) * hit.score / scale), place, hit.id))
    head = [(name, -score) for score, _, name in sorted(scored)]
    return head + [(hit.id, hit.score or 0.0) for hit in answer.hits[window:]]


@pytest.mark.parametrize("route", ["beside", "fetch"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_order_is_the_formulas(served: Served, route: str, alpha: float) -> None:
    page = reranker_of(served, route, window=40, alpha=alpha).search(QUERY, BODY, size=1000)
    expected = expected_order(served, 40, alpha, BODY)
    assert [hit.id for hit in page.hits] == [name for name, _ in expected]
    np.testing.assert_allclose([hit.score for hit in page.hits], [score for _, score in expected], atol=2e-6)
    assert page.reranked
    assert not page.fallback
    assert [hit.rank for hit in page.hits] == list(range(1, len(page.hits) + 1))
    assert page.alpha == alpha
    if alpha > 0:
        assert [hit.first_stage_rank for hit in page.hits[:40]] != list(range(1, 41))


@pytest.mark.parametrize("route", ["beside", "fetch"])
@pytest.mark.parametrize("size", [1, 7, 10, 33])
def test_pages_together_are_the_whole_result_once(served: Served, route: str, size: int) -> None:
    reranker = reranker_of(served, route, window=25)
    whole = reranker.search(QUERY, BODY, size=1000)
    assert len(whole.hits) == whole.total > 60
    joined: list[tuple[str, int, float]] = []
    for first in range(0, whole.total + size, size):
        page = reranker.search(QUERY, BODY, size=size, from_=first)
        joined += [(hit.id, hit.rank, hit.score) for hit in page.hits]
    assert joined == [(hit.id, hit.rank, hit.score) for hit in whole.hits]
    assert len({name for name, _, _ in joined}) == whole.total


def test_hits_carry_what_the_body_asks_for_and_nothing_of_ours(served: Served) -> None:
    reranker = reranker_of(served, "fetch")
    assert reranker.search(QUERY, BODY).hits[0].source.keys() == {"title", "text", "tag"}
    only = reranker.search(QUERY, {**BODY, "_source": ["title"]}).hits[0]
    assert only.source == {"title": served.documents[only.id]["title"]}
    assert reranker.search(QUERY, {**BODY, "_source": False}).hits[0].source == {}
    past = reranker_of(served, "fetch", window=5).search(QUERY, BODY, from_=5)
    assert past.hits[0].source.keys() == {"title", "text", "tag"}
    assert not past.reranked
    assert not past.fallback


def test_a_body_that_shows_nothing_costs_one_request(served: Served) -> None:
    counting = Spy(served.engine)
    reranker_of(served, "beside", engine=counting).search(QUERY, {**BODY, "_source": False})
    assert len(counting.bodies) == 1
    assert counting.bodies[0]["_source"] is False
    counting.bodies.clear()
    reranker_of(served, "beside", engine=counting).search(QUERY, BODY)
    assert len(counting.bodies) == 2
    assert len(set(counting.preferences)) == 1
    assert counting.preferences[0]


def test_small_documents_come_with_the_candidates_once_their_size_is_known(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.engines.local.LocalEngine.in_process", False)
    for route in ("beside", "fetch"):
        spy = Spy(served.engine)
        reranker = reranker_of(served, route, engine=spy)
        two, one = reranker.search(QUERY, BODY), reranker.search(QUERY, BODY)
        assert [body["_source"] for body in spy.bodies[:1]] != [True]
        assert len(spy.bodies) == 3
        assert spy.bodies[2]["_source"] is True
        assert [(h.id, h.score, h.source) for h in one.hits] == [(h.id, h.score, h.source) for h in two.hits]
        listed = {**BODY, "_source": ["title"]}
        two, one = reranker.search(QUERY, listed), reranker.search(QUERY, listed)
        assert len(spy.bodies) == 6
        assert one.hits[0].source.keys() == {"title"}
        assert [(h.id, h.source) for h in one.hits] == [(h.id, h.source) for h in two.hits]
        careful = reranker_of(served, route, engine=Spy(served.engine), one_request_bytes=0)
        careful.search(QUERY, BODY)
        careful.search(QUERY, BODY)
        assert len(careful.engine.bodies) == 4  # type: ignore[attr-defined]


def test_an_empty_list_of_fields_shows_all_of_them_however_often_it_is_asked(served: Served) -> None:
    """As the engines have it."""
    reranker = reranker_of(served)
    pages = [reranker.search("word3 word11", {**BODY, "_source": []}).hits for _ in range(3)]
    assert pages[0][0].source == served.documents[pages[0][0].id]
    assert pages[1] == pages[0] and pages[2] == pages[0]


def test_no_more_documents_are_asked_for_at_once_than_engines_give() -> None:
    sizes: list[int] = []

    class Many:
        def search(self, index: str, body: dict[str, Any], **options: Any) -> SearchAnswer:
            sizes.append(body["size"])
            return SearchAnswer(tuple(hits), len(hits), True, False, {})

    hits = [Hit(f"d{k}", f"docs-{k % 12:02d}", 1.0) for k in range(1000)]
    found = documents_of(cast("Engine", Many()), "docs", {}, hits, preference=None, timeout_s=None)
    assert len(found) == 1000
    assert max(sizes) <= MAX_HITS


def test_a_page_that_shows_more_than_source_takes_two_requests() -> None:
    extras: list[dict[str, Any]] = [
        {"highlight": {}},
        {"explain": True},
        {"fields": ["a"]},
        {"_source": {"excludes": ["a"]}},
    ]
    for extra in extras:
        assert not shows_source_alone({**BODY, **extra})
    assert shows_source_alone({**BODY, "_source": ["a"]})
    named = {"query": {"bool": {"should": [{"match": {"a": {"query": "{{query}}", "_name": "x"}}}]}}}
    assert [needs_the_query(body) for body in (BODY, {**BODY, "highlight": {}}, named)] == [False, True, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 0}, "size: 0"),
        ({"sort": [{"tag": "asc"}]}, "sorts by tag"),
        ({"search_after": [1.0]}, "search_after"),
        ({"collapse": {"field": "tag"}}, "collapses"),
    ],
)
def test_what_is_not_reranked_is_said(served: Served, change: dict[str, Any], reason: str) -> None:
    answer = served.engine.search(served.index, {"query": {"match_all": {}}, "size": 3})
    fixed = Spy(served.engine, answer)
    page = reranker_of(served, engine=fixed).search(QUERY, {**BODY, **change})
    assert page.cause == "not_rerankable" and reason in str(page.reason)
    assert not page.reranked
    assert not page.fallback
    assert [hit.id for hit in page.hits] == [hit.id for hit in answer.hits]
    assert fixed.bodies == [{**fixed.bodies[0], **change}]


class Spy:
    """An engine that notes what it is asked, and may answer something of its own."""

    def __init__(self, engine: Engine, answer: SearchAnswer | None = None, fail_at: int = -1) -> None:
        self._engine, self._answer, self._fail_at = engine, answer, fail_at
        self.bodies: list[Any] = []
        self.preferences: list[str | None] = []
        self.timeouts: list[float | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search(
        self, index: str, body: Any, *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        self.bodies.append(body)
        self.preferences.append(preference)
        self.timeouts.append(timeout_s)
        if len(self.bodies) - 1 == self._fail_at:
            raise EngineUnavailable("connection reset", engine="memory")
        return self._answer or self._engine.search(index, body, preference=preference, timeout_s=timeout_s)


def engine_order(served: Served, size: int = 10) -> list[str]:
    answer = served.engine.search(
        served.index,
        {
            "query": {"multi_match": {"query": QUERY, "fields": ["title^2", "text"], "type": "most_fields"}},
            "size": size,
        },
    )
    return [hit.id for hit in answer.hits]


def test_the_first_request_failing_is_an_error(served: Served) -> None:
    with pytest.raises(EngineUnavailable):
        reranker_of(served, engine=Spy(served.engine, fail_at=0)).search(QUERY, BODY)


def test_the_second_request_failing_gives_the_engines_order(served: Served) -> None:
    page = reranker_of(served, engine=Spy(served.engine, fail_at=1)).search(QUERY, BODY)
    assert page.fallback
    assert page.cause == "documents" and "connection reset" in str(page.reason)
    assert [hit.id for hit in page.hits] == engine_order(served)


def test_a_scorer_that_raises_gives_the_engines_order(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("numbers")

    monkeypatch.setattr("reranker.rerank.candidates.score_vectors", broken)
    page = reranker_of(served).search(QUERY, BODY)
    assert page.fallback
    assert page.reason == Reason(ReasonKind.ERROR, "reranking failed: ZeroDivisionError", "numbers")
    assert page.to_json()["reason"] == "reranking failed: ZeroDivisionError: numbers"
    assert [hit.id for hit in page.hits] == engine_order(served)
    assert page.hits[0].source


def test_time_is_reserved_for_the_engines_own_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(served.engine)
    reranker = reranker_of(served, engine=spy, deadline_ms=30_000)
    assert reranker.search(QUERY, BODY).reranked
    assert all(timeout is not None and timeout <= 20.0 for timeout in spy.timeouts)
    monkeypatch.setattr("reranker.rerank.candidates.score_vectors", None)
    del spy.timeouts[:]
    page = reranker.search(QUERY, {**BODY, "from": 3, "size": 4})
    assert page.fallback and spy.bodies[-1]["from"] == 3 and spy.bodies[-1]["size"] == 4
    *_, own = spy.timeouts
    assert own is not None and 20.0 < own <= 30.0
    # Where its own answers take the engine too long, it is asked for nothing else.
    reranker._own_answer_s = 16.0
    del spy.bodies[:]
    late = reranker.search(QUERY, BODY)
    assert late.fallback and late.cause == "deadline" and len(spy.bodies) == 1
    assert reranker._own_answer_s < 16.0


def test_a_document_that_is_gone_makes_the_page_the_engines_own(served: Served) -> None:
    class Losing(Spy):
        def search(self, index: str, body: Any, **named: Any) -> SearchAnswer:
            answer = super().search(index, body, **named)
            return replace(answer, hits=answer.hits[1:]) if "filter" in body["query"].get("bool", {}) else answer

    page = reranker_of(served, engine=Losing(served.engine), one_request_bytes=0).search(QUERY, BODY)
    assert page.fallback and page.cause == "documents"
    assert [hit.id for hit in page.hits] == engine_order(served) and all(hit.source for hit in page.hits)


def test_a_query_is_analyzed_by_the_engine_before_its_search(served: Served) -> None:
    """While a connection waits for the search, the analysis would need another one."""
    events: list[str] = []

    def analyze(texts: Sequence[str]) -> list[list[str]]:
        events.append("analyze")
        return [text.split() for text in texts]

    class Noting(Spy):
        def search(self, index: str, body: Any, **named: Any) -> SearchAnswer:
            events.append("search")
            return super().search(index, body, **named)

    config = AnalyzerConfig(kind="engine", engine_field="docs/text")
    encoder = replace(served.model.encoder, analyzer=make_analyzer(config, analyze))
    model = replace(served.model, encoder=encoder)
    reranker = Reranker(Noting(served.engine), "docs", model, settings=RerankSettings(deadline_ms=None))
    reranker.search(QUERY, BODY)
    assert events[:2] == ["analyze", "search"]


def test_a_query_with_a_syntax_is_encoded_by_the_words_that_it_asks_for(served: Served) -> None:
    class Simple(Spy):
        def search(self, index: str, body: Any, **named: Any) -> SearchAnswer:
            if clause := body["query"].get("simple_query_string"):
                body = {**body, "query": {"match": {"text": clause["query"].partition(" -")[0]}}}
            return super().search(index, body, **named)

    reranker = reranker_of(served, engine=Simple(served.engine), alpha=1.0)
    page = reranker.search("word3 -word11", {"query": {"simple_query_string": {"query": "{{query}}"}}})
    plain = reranker.search("word3", {"query": {"match": {"text": "{{query}}"}}})
    assert page.reranked and (page.asked, plain.asked) == ("word3", "")
    assert [(hit.id, hit.score) for hit in page.hits] == [(hit.id, hit.score) for hit in plain.hits]
    assert "asked" not in page.to_json()


@pytest.mark.parametrize("fails", [False, True])
def test_the_query_is_encoded_while_the_engine_searches(
    served: Served, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    events: list[str] = []
    encode = served.model.encode_queries

    def noted(queries: list[str]) -> Any:
        events.append("encode")
        if fails:
            raise ZeroDivisionError("numbers")
        return encode(queries)

    class Waiting(Spy):
        def search(self, index: str, body: Any, **named: Any) -> SearchAnswer:
            events.append("search")
            if (work := while_waiting.get()) is not None:
                work()
            return super().search(index, body, **named)

    expected = reranker_of(served).search(QUERY, BODY)
    monkeypatch.setattr(type(served.model), "encode_queries", lambda _, queries: noted(queries))
    page = reranker_of(served, engine=Waiting(served.engine)).search(QUERY, BODY)
    assert while_waiting.get() is None
    if fails:
        assert page.reason == Reason(ReasonKind.ERROR, "reranking failed: ZeroDivisionError", "numbers")
        assert [hit.id for hit in page.hits] == engine_order(served)
    else:
        assert events == ["search", "encode", "search"]
        assert page.hits == expected.hits


def test_without_model_or_store_the_engines_order_comes_back(served: Served) -> None:
    for reranker, cause, reason in (
        (Reranker(served.engine, served.index, None), "no_model", "no model"),
        (Reranker(served.engine, served.index, served.model, route="beside"), "no_store", "no vector store"),
    ):
        page = reranker.search(QUERY, BODY)
        assert page.fallback
        assert page.cause == cause and reason in str(page.reason)
        assert [hit.id for hit in page.hits] == engine_order(served)
        assert page.hits[0].source
    with pytest.raises(InputError, match="give a search body"):
        Reranker(served.engine, served.index, None).search(QUERY)


def test_past_its_deadline_a_search_gives_the_engines_order(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(np.arange(0, 100, 0.03))
    monkeypatch.setattr(
        "reranker.rerank.search.Deadline", lambda limit: Deadline(limit, now=lambda: float(next(ticks)))
    )
    spy = Spy(served.engine)
    page = reranker_of(served, engine=spy, deadline_ms=100).search(QUERY, BODY)
    assert page.fallback
    assert page.cause == "deadline" and "deadline of 100 ms" in str(page.reason)
    assert [hit.id for hit in page.hits] == engine_order(served)
    assert page.hits[0].source
    first, last = spy.timeouts
    assert first is not None
    assert first <= 0.1
    assert last == 0.05


def test_a_query_with_nothing_to_rank_by_falls_back(served: Served) -> None:
    page = reranker_of(served).search("...", BODY)
    assert page.fallback
    assert page.cause == "empty_query" and "no word" in str(page.reason)


def test_a_query_of_unlisted_words_says_so(served: Served) -> None:
    page = reranker_of(served).search("zzz9 word1", BODY)
    assert not any("vocabulary" in notice for notice in page.notices)
    spy = Spy(served.engine, served.engine.search(served.index, {"query": {"match_all": {}}}))
    page = reranker_of(served, engine=spy).search("zzz9", {**BODY, "_source": False})
    assert any("vocabulary" in notice for notice in page.notices)


def test_another_encoders_store_is_refused(served: Served) -> None:
    other = model_of(served.documents, seed=2)
    with pytest.raises(EncoderMismatch):
        Reranker(served.engine, served.index, other, route="beside", store=served.store)


def test_bad_arguments_are_refused(served: Served) -> None:
    with pytest.raises(ConfigError, match="route"):
        Reranker(served.engine, served.index, served.model, route="sideways")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="negative"):
        reranker_of(served).search(QUERY, BODY, from_=-1)
    with pytest.raises(ConfigError, match=r"\{\{query\}\}"):
        reranker_of(served).search(QUERY, {"query": {"match_all": {}}})
    for bad in ({"window": 0}, {"deadline_ms": 0}, {"max_unscored": 1.5}, {"alpha": 2}):
        with pytest.raises(ConfigError):
            RerankSettings(**bad)


def test_alpha_is_the_fitted_one_of_body_and_window(served: Served) -> None:
    fitted = Calibration({Calibration.key(body_hash(BODY), 200): 0.75})
    # No deadline: the first search may compile the kernels.
    patient = RerankSettings(deadline_ms=None)
    reranker = Reranker(served.engine, served.index, served.model, calibration=fitted, settings=patient)
    facet = {"query": {"bool": {"must": BODY["query"], "filter": {"exists": {"field": "text"}}}}}
    for body in ({**BODY, "size": 3, "_source": ["title"]}, facet):
        page = reranker.search(QUERY, body)
        assert (page.alpha, page.alpha_origin) == (0.75, "calibrated")
        assert page.notices == ()
    for other in (
        reranker.search(QUERY, {"query": {"match": {"text": "{{query}}"}}}),
        Reranker(
            served.engine, served.index, served.model, calibration=fitted, settings=replace(patient, window=100)
        ).search(QUERY, BODY),
    ):
        assert (other.alpha, other.alpha_origin) == (DEFAULT_ALPHA, "default")
        assert any("ssi calibrate" in notice for notice in other.notices)


def test_no_body_searches_the_models_fields(served: Served) -> None:
    assert default_template(served.model.encoder.view) == BODY
    ours, theirs = reranker_of(served).search(QUERY), reranker_of(served).search(QUERY, BODY)
    assert ours.hits == theirs.hits


def test_pinned_hits_keep_their_places(served: Served) -> None:
    normal = reranker_of(served, alpha=1.0).search(QUERY, BODY, size=20)
    hits = list(
        served.engine.search(
            served.index,
            {
                "query": {"multi_match": {"query": QUERY, "fields": ["title^2", "text"], "type": "most_fields"}},
                "size": 200,
            },
        ).hits
    )
    last = [hits[-1], hits[-2]]
    pinned = [structs.replace(hit, score=1.7014124e38 - place) for place, hit in enumerate(last)]
    answer = SearchAnswer((*pinned, *hits[:-2]), total=len(hits))
    body = {"query": {"pinned": {"ids": [hit.id for hit in last], "organic": BODY["query"]}}, "_source": False}
    page = reranker_of(served, "beside", engine=Spy(served.engine, answer), alpha=1.0).search(QUERY, body, size=20)
    ids = [hit.id for hit in page.hits]
    assert ids[:2] == [hit.id for hit in last]
    assert all(hit.kept for hit in page.hits[:2])
    assert ids[2:12] == [hit.id for hit in normal.hits if hit.id not in ids[:2]][:10]
    assert not any(hit.kept for hit in page.hits[2:])


@pytest.mark.parametrize("hit", [Hit("a", "docs", 1.0), RankedHit("a", "docs", 1, 1.0, 1)])
def test_a_hit_cannot_be_changed(hit: Any) -> None:
    with pytest.raises(AttributeError):
        hit.score = 2.0
    assert structs.replace(hit, score=2.0) != hit == structs.replace(hit)
