"""Whatever happens, the page is a permutation of the candidates or the engine's own page, and says what happened."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from reranker.engines.protocol import WriteOp
from reranker.engines.vectors import field_name
from reranker.errors import EngineError, EngineUnavailable, FallbackError
from reranker.records import Hit, ReasonKind, SearchAnswer
from reranker.rerank import RerankedPage, Reranker, RerankSettings
from reranker.rerank.calibration.kept import PINNED_SCORE
from reranker.rerank.candidates import StoredFields, check_unscored, encode_query
from reranker.rerank.ranking import final_order, kept_in_place, pinned_ids
from reranker.store import StoreWriter, VectorStore
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve
from tests.services import small_index
from tests.unit.rerank.test_reranker import BODY, QUERY, Spy, reranker_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("memory"), memory_engine(), n=40)
    yield served
    served.engine.close()


SCORES = (None, 0.0, 1.0, 1.0, 2.0, 17.5, math.nan, math.inf, -math.inf, -3.0, 1.7014124e38, 1e300)
TEXTS = (
    "",
    " ",
    "word3 word11",
    "word0",
    "e\u0301te\u0301",
    "\u05e9\u05dc\u05d5\u05dd",
    "a\u200db",
    "\ud800",
    "\0",
    "\U0001f600" * 3,
)
VALUES: tuple[Any, ...] = (*TEXTS, None, 3, "AAAA", "IAAAAAA=", ["x", "\ud800"], math.nan, {"a": {"b": []}})


class Whole:
    """Ids of the index and the packed vectors they have there; plain, so that a failure does not print them all."""

    def __init__(self, ids: list[str], fields: list[str], sources: list[dict[str, Any]]) -> None:
        self.ids, self.fields, self.sources = ids, fields, sources


@pytest.fixture(scope="module")
def whole(served: Served) -> Whole:
    ids = sorted(served.documents)
    fields = [field_name(served.model.encoder_id, part) for part in ("vec", "terms")]
    found = served.engine.get("docs", ids, source=fields)
    return Whole(ids, fields, [dict(document.source) for document in found if document is not None])


@pytest.fixture(scope="module")
def opened(served: Served) -> VectorStore:
    return served.store


def is_own(body: Mapping[str, Any]) -> bool:
    """Return whether a request is for the engine's own answer: the others say which ``_source`` they need."""
    return "_source" not in body


def odd_answer(rng: random.Random, whole: Whole, fields: list[str], *, raw: bool = False) -> SearchAnswer:
    """Return an engine's answer: known and unknown ids, repeated ids, odd scores, whole and broken vectors."""
    hits = []
    for _ in range(rng.randrange(13)):
        place = rng.randrange(len(whole.ids))
        source = dict(whole.sources[place]) if rng.random() < 0.6 else {}
        for name in fields:
            if rng.random() < 0.2:
                source[name] = rng.choice(VALUES)
        identifier = whole.ids[place] if rng.random() < 0.7 else rng.choice(TEXTS)
        hits.append(Hit(identifier, rng.choice(["docs", "other"]), rng.choice(SCORES), source))
    own = {"hits": {"hits": [{"_id": hit.id} for hit in hits]}} if raw else {}
    return SearchAnswer(tuple(hits), rng.randrange(100), timed_out=rng.random() < 0.1, raw=own)


class Garbage(Spy):
    """Answers the first request as told; the others with anything, or not at all. Its own page is also told."""

    def __init__(self, served: Served, answers: Sequence[SearchAnswer | EngineError], own: SearchAnswer) -> None:
        super().__init__(served.engine)
        self._answers, self._own = answers, own

    def search(
        self, index: str, body: Any, *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        if is_own(body):
            return self._own
        answer = self._answers[min(len(self.bodies), len(self._answers) - 1)]
        self.bodies.append(body)
        if isinstance(answer, EngineError):
            raise answer
        return answer


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SSI_EXAMPLES", "10000")))
@given(seed=st.integers(0, 2**32), query=st.sampled_from(TEXTS))
def test_the_page_is_a_permutation_of_the_candidates_or_the_engines_own(
    served: Served, whole: Whole, opened: VectorStore, seed: int, query: str
) -> None:
    rng = random.Random(seed)
    first = odd_answer(rng, whole, whole.fields)
    later: list[SearchAnswer | EngineError] = [odd_answer(rng, whole, ["title", "text"]) for _ in range(2)]
    if rng.random() < 0.3:
        later[rng.randrange(2)] = EngineUnavailable("cut")
    own = odd_answer(rng, whole, ["title", "text"], raw=True)
    options = RerankSettings(
        deadline_ms=None,
        window=rng.randrange(1, 15),
        alpha=rng.choice([0.0, 0.5, 1.0]),
        max_unscored=rng.choice([0.0, 0.2, 1.0]),
    )
    route: Literal["beside", "fetch"] = rng.choice(["beside", "fetch"])
    store = opened

    def run() -> RerankedPage:
        engine: Any = Garbage(served, [first, *later], own)
        reranker = Reranker(engine, "docs", served.model, route=route, store=store, settings=options)
        return reranker.search(query, BODY, size=20, explain=True)

    page, again = run(), run()
    assert [(hit.id, hit.index, hit.score) for hit in page.hits] == [(h.id, h.index, h.score) for h in again.hits]
    expected = own if page.fallback else first
    n = len(expected.hits)
    assert sorted((hit.index, hit.id) for hit in page.hits) == sorted((hit.index, hit.id) for hit in expected.hits)
    assert sorted(hit.first_stage_rank for hit in page.hits) == list(range(1, n + 1))
    assert [hit.rank for hit in page.hits] == list(range(1, n + 1))
    assert all(math.isfinite(hit.score) for hit in page.hits)
    assert page.reranked != page.fallback
    assert (page.reason is not None) == bool(page.cause) == page.fallback
    if page.fallback:
        assert [hit.first_stage_rank for hit in page.hits] == list(range(1, n + 1))
        assert page.engine_answer == own.raw and page.max_score is None
    else:
        assert page.engine_answer is None
        check_order(page.hits[: options.window])
    for explanation in page.explanations:
        total = math.fsum(row.value for row in explanation.contributions)
        assert not explanation.contributions or total == pytest.approx(explanation.score, abs=1e-6, rel=1e-9), (
            explanation
        )


def check_order(hits: Any) -> None:
    """Check that hits that may move stand by (-score, first-stage rank) and that the others have not moved."""
    moving = [hit for hit in hits if not (hit.kept or hit.unscored)]
    keys = [(-hit.score, hit.first_stage_rank) for hit in moving]
    assert keys == sorted(keys)
    assert all(hit.rank == hit.first_stage_rank for hit in hits if hit.kept or hit.unscored)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, -1.0, math.nan]), st.booleans()), max_size=30))
@example([])
def test_order_is_a_permutation_with_stable_ties(cells: list[tuple[float, bool]]) -> None:
    scores, kept = np.array([score for score, _ in cells], float), np.array([k for _, k in cells], bool)
    order = final_order(scores, kept).tolist()
    assert sorted(order) == list(range(len(cells)))
    for place, origin in enumerate(order):
        if kept[origin] or math.isnan(scores[origin]):
            assert place == origin
    moving = [(-scores[origin], origin) for origin in order if not kept[origin] and not math.isnan(scores[origin])]
    assert moving == sorted(moving)


def test_hits_without_a_vector_are_encoded_from_their_text(tmp_path_factory: pytest.TempPathFactory) -> None:
    documents = random_documents(60)
    engine = memory_engine()
    model = model_of(documents)
    whole = serve(engine, "whole", tmp_path_factory.mktemp("a"), documents, model)
    part = serve(engine, "part", tmp_path_factory.mktemp("b"), dict(list(documents.items())[:40]), model)
    part.put(dict(list(documents.items())[40:]), vectors=False)
    for route in ("fetch", "beside"):
        expected = reranker_of(whole, route, alpha=0.7).search(QUERY, BODY, size=60)
        found = reranker_of(part, route, alpha=0.7).search(QUERY, BODY, size=60)
        assert [(h.id, h.score, h.model_score) for h in found.hits] == [
            (h.id, h.score, h.model_score) for h in expected.hits
        ]
        assert expected.n_encoded == 0
        assert found.n_encoded == sum(int(h.id[1:]) >= 40 for h in found.hits) > 0
        assert found.n_unscored == 0
        assert any("ssi sync" in notice for notice in found.notices)


def test_hits_without_vector_and_text_keep_their_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    documents = random_documents(30)
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path_factory.mktemp("a"), documents, model_of(documents))
    served.put({f"empty{i}": {"tag": "x"} for i in range(3)}, vectors=False)
    body = {"query": {"bool": {"should": [{"term": {"tag": {"value": "x"}}}, {"match": {"text": "{{query}}"}}]}}}
    for route in ("fetch", "beside"):
        page = reranker_of(served, route, alpha=1.0).search(QUERY, body, size=100)
        empty = [hit for hit in page.hits if hit.id.startswith("empty")]
        assert len(empty) == 3
        assert all(hit.unscored and hit.rank == hit.first_stage_rank and hit.model_score is None for hit in empty)
        assert page.n_unscored == 3
        assert page.reranked
        strict = reranker_of(served, route, alpha=1.0, max_unscored=0.01).search(QUERY, body, size=100)
        assert strict.fallback
        assert strict.cause == "unscored" and "ssi sync" in str(strict.reason)


def test_a_document_stored_without_text_counts_as_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    documents = random_documents(30)
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path_factory.mktemp("a"), documents, model_of(documents))
    late = random_documents(31)["d30"] | {"tag": "late"}
    served.put({"late": {"tag": "late"}})
    encoded = served.model.encoder.encode([{}])
    with StoreWriter(served.store_path, served.model.encoder_id, served.model.encoder.n_dims) as store:
        store.add(["late"], encoded.vectors, encoded.rows, encoded.source_hashes)
    engine.bulk("docs", [WriteOp("update", "late", late)])
    body = {"query": {"bool": {"should": [{"term": {"tag": "late"}}, {"match": {"text": "{{query}}"}}]}}}
    for route in ("fetch", "beside"):
        page = reranker_of(served, route, alpha=1.0).search(QUERY, body, size=40)
        (found,) = [hit for hit in page.hits if hit.id == "late"]
        assert page.n_encoded == 1
        assert not found.unscored


def test_a_score_that_is_not_a_number_leaves_its_hit_in_place(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from reranker.rerank import candidates

    original = candidates.score_vectors

    def one_nan(*arguments: Any) -> Any:
        scores = original(*arguments)
        scores[3] = np.nan
        return scores

    monkeypatch.setattr(candidates, "score_vectors", one_nan)
    page = reranker_of(served, alpha=1.0).search(QUERY, BODY, size=20)
    assert page.reranked
    assert [(hit.rank, hit.first_stage_rank) for hit in page.hits if hit.unscored] == [(4, 4)]


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_vector_costs_no_other_document_its_own(served: Served, damaged: int) -> None:
    fields = StoredFields(served.model.encoder_id, served.model.encoder.n_dims)
    query = encode_query(served.model, "word3 word11").vectors
    hits = list(served.engine.search("docs", {"size": 3}).hits)
    whole = fields.load(hits).score(query)
    for name in fields.source_fields:
        spoilt = list(hits)
        spoilt[damaged] = structs.replace(hits[damaged], source={**hits[damaged].source, name: "!"})
        vectors = fields.load(spoilt)
        assert vectors.missing().tolist() == [damaged]
        others = np.delete(np.arange(3), damaged)
        np.testing.assert_array_equal(vectors.score(query)[others], whole[others])


def test_hits_with_a_pinned_score_keep_their_places_without_a_pinned_query() -> None:
    scores = [1.7e38, PINNED_SCORE, 0.99 * PINNED_SCORE, None, 3.0]
    kept = kept_in_place([Hit(str(place), "docs", score) for place, score in enumerate(scores)], BODY)
    assert kept.tolist() == [True, True, False, False, False]


def test_as_many_unscored_as_may_be_are_no_fallback() -> None:
    for n_unscored, n, allowed in ((2, 10, 0.2), (0, 0, 0.2), (0, 10, 0.0), (10, 10, 1.0)):
        check_unscored(n_unscored, n, allowed, "")
    for n_unscored, n, allowed in ((3, 10, 0.2), (1, 4, 0.2), (1, 10, 0.0)):
        with pytest.raises(FallbackError, match=f"{n_unscored} of {n} candidates") as raised:
            check_unscored(n_unscored, n, allowed, "run `ssi sync`")
        assert raised.value.reason.kind is ReasonKind.UNSCORED


def test_an_odd_pinned_query_is_read() -> None:
    query = {"bool": {"must": [{"pinned": {"docs": [{"_index": "i", "_id": "a"}, {}], "ids": ["b", 3]}}]}}
    assert pinned_ids({"query": query}) == {"a", "b", "3"}
    assert pinned_ids({"retriever": {"pinned": {"ids": ["c"]}}}) == {"c"}
    assert pinned_ids({"query": {"match": {"pinned": "word"}}}) == frozenset()
    assert pinned_ids({}) == frozenset()


def test_a_reranker_needs_no_settings(served: Served) -> None:
    assert Reranker(served.engine, served.index, served.model).settings == RerankSettings()
