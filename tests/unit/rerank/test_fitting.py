"""Calibration: finds the alpha that is right by construction, and is honest about what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.errors import ConfigError, InputError
from reranker.releases import Release, read_control, update_control
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibrate import (
    ALPHAS,
    Topic,
    _best,
    cross_validated,
    fit_alpha,
    keep_in_release,
    sample,
    topics_of_links,
    topics_of_qrels,
    warnings_of,
)
from reranker.rerank.search import calibration_of
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve
from tests.unit.rerank.test_reranker import BODY


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    documents = random_documents(200)
    engine = memory_engine()
    yield serve(engine, "docs", tmp_path_factory.mktemp("m"), documents, model_of(documents, scale=0.8))
    engine.close()


def reranker_of(served: Served) -> Reranker:
    return Reranker(served.engine, served.index, served.model, settings=RerankSettings(window=60, deadline_ms=None))


def topics_whose_answers_come_from(served: Served, alpha: float, n: int = 30) -> list[Topic]:
    """Return topics whose relevant documents are the first five under an alpha."""
    topics = []
    for number in range(n):
        query = f"word{number % 20} word{(number * 7) % 30}"
        options = RerankSettings(window=60, deadline_ms=None, alpha=alpha)
        page = Reranker(served.engine, served.index, served.model, settings=options).search(query, BODY, size=5)
        topics.append(Topic(query, {hit.id: 1.0 for hit in page.hits}))
    return topics


@pytest.mark.parametrize("alpha", [0.0, ALPHAS[10], ALPHAS[16], 1.0])
def test_the_alpha_that_made_the_answers_is_found(served: Served, alpha: float) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, alpha), "nDCG@10", BODY)
    assert fit.fitted == pytest.approx(1.0)
    assert dict(fit.curve)[alpha] == pytest.approx(1.0)
    assert fit.alpha <= alpha
    assert fit.ceiling == pytest.approx(1.0)
    assert fit.held_out > 0.97
    assert fit.gain == pytest.approx(fit.held_out - fit.engine)
    assert fit.engine == dict(fit.curve)[0.0]
    assert fit.model == dict(fit.curve)[1.0]
    assert (fit.alpha == 0.0) == (alpha == 0.0)


def test_the_share_of_hits_without_a_common_word_is_counted(served: Served) -> None:
    body = {"query": {"bool": {"should": [{"match": {"text": "{{query}}"}}, {"term": {"tag": {"value": "x"}}}]}}}
    topics = [Topic(f"word{number} word{number + 1}", {"d1": 1.0, "d2": 1.0}) for number in range(35, 47)]
    reranker = reranker_of(served)
    zero = total = 0
    for topic in topics:
        window, _, _ = reranker.score_window(topic.query, body)
        for hit in window.hits:
            source = served.documents[hit.id]
            words = set(f"{source['title']} {source['text']}".split())
            zero += not words & set(topic.query.split())
            total += 1
    fit = fit_alpha(reranker, topics, "nDCG@10", body)
    assert fit.zero_share == pytest.approx(zero / total)
    assert 0.2 < fit.zero_share < 1
    assert any("q·d = 0" in warning for warning in warnings_of(fit))
    clean = fit_alpha(reranker, topics, "AP", BODY)
    assert clean.zero_share == 0.0
    assert not any("q·d = 0" in warning for warning in warnings_of(clean))


def test_held_out_values_never_see_their_own_query() -> None:
    """One query that alone prefers alpha 1 must be judged by the alpha of the others."""
    values = np.tile(np.array([[0.6], [0.5]]), (1, 50))
    values[:, 7] = 0.0, 10.0
    assert cross_validated(values, seed=0)[7] == 0.0
    fold = np.random.default_rng(0).permutation(50) % 5 == 0
    values = np.where(fold, [[0.0], [1.0]], [[0.6], [0.5]])
    assert not cross_validated(values, seed=0)[fold].any(), "nor the other queries of its part"
    constant = np.random.default_rng(0).random(50)
    np.testing.assert_array_equal(cross_validated(np.stack([constant, constant]), 0), constant)


def test_a_gain_below_its_standard_error_leaves_the_engine_s_order() -> None:
    rng = np.random.default_rng(1)
    engine = rng.random(40)
    noise = rng.normal(0.0, 1.0, 40)
    for gain, alpha in ((0.5, 0), (2.0, 1)):  # of a standard error
        better = engine + (noise - noise.mean()) + gain * noise.std(ddof=1) / np.sqrt(40)
        values = np.stack([engine, better])
        assert _best(values) == alpha
    assert cross_validated(np.stack([engine, engine + 0.1]), seed=0) == pytest.approx(engine + 0.1)


def test_too_few_queries_are_refused(served: Served) -> None:
    with pytest.raises(InputError, match="too few"):
        fit_alpha(reranker_of(served), [Topic("word1", {"d1": 1.0})] * 9, "AP", BODY)


def test_a_fit_is_kept_in_the_release_and_found_by_searches(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, ALPHAS[16]), "AP", BODY)
    model = served.model
    with pytest.raises(InputError, match="is no version"):
        keep_in_release(served.engine, served.index, model.model_id, BODY, 60, fit)
    release = Release(model.model_id, model.encoder_id, {"0" * 16 + ":10": {"alpha": 0.25}})
    update_control(served.engine, served.index, lambda record: record.with_release(release))
    keep_in_release(served.engine, served.index, model.model_id, BODY, 60, fit)
    entries = read_control(served.engine, served.index).release(model.model_id).calibration
    assert entries.keys() == {"0" * 16 + ":10", Calibration.key(body_hash(BODY), 60)}
    calibration = calibration_of(served.engine, served.index, model.model_id)
    assert calibration.choose(BODY, 60).value == fit.alpha
    assert calibration_of(served.engine, served.index, "other") == Calibration()
    assert calibration_of(served.engine, "unknown-index", model.model_id) == Calibration()


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("x", {"alpha": 0.5}),
        ("0" * 16 + ":ten", {"alpha": 0.5}),
        ("0" * 16 + ":10", {}),
        ("0" * 16 + ":10", {"alpha": True}),
        ("0" * 16 + ":10", {"alpha": 2}),
        ("0" * 16 + ":10", 0.5),
    ],
)
def test_a_damaged_calibration_is_refused(key: str, entry: Any) -> None:
    with pytest.raises(ConfigError):
        Calibration.from_release({key: entry})


MATCH: dict[str, Any] = BODY["query"]
OTHER: dict[str, Any] = {"match": {"brand": "{{query}}"}}
FACET: dict[str, Any] = {"term": {"tag": "x"}}


@pytest.mark.parametrize(
    "change",
    [
        {"_source": ["x"], "size": 3, "from": 5, "highlight": {}, "aggs": {"t": {}}},
        {"post_filter": FACET, "min_score": 1, "timeout": "100ms", "track_total_hits": True, "terminate_after": 9},
        {"query": {"bool": {"must": MATCH, "filter": [FACET]}}},
        {"query": {"bool": {"must": [MATCH], "must_not": FACET}}},
        {"query": {"bool": {"should": [MATCH], "filter": FACET, "minimum_should_match": 1}}},
        {"query": {"bool": {"must": {"bool": {"must": [MATCH], "filter": FACET}}, "filter": FACET}}},
    ],
)
def test_what_is_shown_and_what_filters_leave_a_bodys_alpha(change: dict[str, Any]) -> None:
    assert body_hash({**BODY, **change}) == body_hash(BODY)


@pytest.mark.parametrize(
    "query",
    [
        {"bool": {"must": [MATCH], "should": [OTHER]}},
        {"function_score": {"query": MATCH, "functions": [{"filter": FACET, "weight": 2}]}},
        {"script_score": {"query": MATCH, "script": {"source": "_score"}}},
    ],
)
def test_a_facet_leaves_the_alpha_of_a_larger_query(query: dict[str, Any]) -> None:
    ((name, inner),) = query.items()
    narrower = {name: inner | {"query": {"bool": {"must": MATCH, "filter": FACET}}}}
    if name == "bool":
        narrower = {name: {**inner, "filter": FACET}}
    assert body_hash({"query": narrower}) == body_hash({"query": query}) != body_hash(BODY)


def test_filters_of_knn_and_retrievers_leave_the_alpha() -> None:
    knn: dict[str, Any] = {"field": "v", "query_vector": [1.0], "k": 10}
    assert body_hash({**BODY, "knn": {**knn, "filter": FACET}}) == body_hash({**BODY, "knn": knn}) != body_hash(BODY)
    retriever = {"rrf": {"retrievers": [{"standard": {"query": MATCH}}, {"knn": knn}]}}
    filtered = {"rrf": {"retrievers": [{"standard": {"query": MATCH, "filter": FACET}}, {"knn": knn}], "filter": FACET}}
    assert body_hash({"retriever": filtered}) == body_hash({"retriever": retriever})


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"bool": {"must": [MATCH, OTHER]}},
        {"bool": {"must": MATCH, "boost": 2}},
        {"constant_score": {"filter": MATCH}},
        {"bool": {"should": [MATCH, {"bool": {"must": OTHER, "filter": FACET}}]}},
    ],
)
def test_another_way_to_score_has_another_alpha(query: dict[str, Any]) -> None:
    # The last one: a filter under should decides whose score the clause adds to.
    others = [BODY["query"], {"bool": {"should": [MATCH, OTHER]}}]
    assert body_hash({"query": query}) not in {body_hash({"query": other}) for other in others}


def test_topics_of_judgements(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1\ta\t2\nq1\tb\t0\nq2\tc\t0\nq3\td\t1\n")
    (tmp_path / "queries").write_text("q1\tred shoe\nq2\tblue\nq4\tgreen\nq3\tgrey\n")
    topics = topics_of_qrels(tmp_path / "qrels", tmp_path / "queries")
    assert topics == [Topic("red shoe", {"a": 2.0, "b": 0.0}), Topic("grey", {"d": 1.0})]
    (tmp_path / "other").write_text("z\tred\n")
    with pytest.raises(InputError, match="query ids of both files"):
        topics_of_qrels(tmp_path / "qrels", tmp_path / "other")


def test_topics_of_links(served: Served, tmp_path: Path) -> None:
    (tmp_path / "links").write_text("a\tb\na\tc\na\ta\nb\tc\nz\ta\ne\ta\n")
    (tmp_path / "docs").write_text(
        '{"id": "a", "title": "Running shoes", "text": "They run. They run fast!"}\n'
        '{"id": "b", "title": "", "text": "one two three"}\n{"id": "c", "title": "x"}\n{"id": "e", "title": ""}\n'
    )
    encoder = served.model.encoder
    files = (tmp_path / "links", tmp_path / "docs", encoder)
    topics = topics_of_links(*files, "title", 0)
    assert topics == [
        Topic("running shoes", {"b": 1.0, "c": 1.0}, frozenset("a")),
        Topic("one two three", {"c": 1.0}, frozenset("b")),
    ]
    drawn = topics_of_links(*files, "keywords:2", 0)
    assert [len(topic.query.split()) for topic in drawn] == [2, 2]
    assert set(drawn[0].query.split()) <= {"running", "shoes", "they", "run", "fast"}
    assert drawn == topics_of_links(*files, "keywords:2", 0)
    assert len({topics_of_links(*files, "keywords:2", seed)[0].query for seed in range(8)}) > 1
    (tmp_path / "links").write_text("z\ty\n")
    with pytest.raises(InputError, match="ids match"):
        topics_of_links(*files, "title", 0)
    for bad in ("keywords:0", "keywords:101", "document", "keywords:x", ""):
        with pytest.raises(ConfigError, match=r"queries is .* title or keywords:K with K from 1 to 100"):
            topics_of_links(*files, bad, 0)


def test_a_sample_keeps_order_and_seed() -> None:
    topics = [Topic(str(number), {}) for number in range(100)]
    drawn = sample(topics, 20, seed=3)
    assert len(drawn) == 20
    assert drawn == sorted(drawn, key=lambda topic: int(topic.query))
    assert drawn == sample(topics, 20, seed=3) != sample(topics, 20, seed=4)
    assert sample(topics, 100, seed=3) == topics


def test_the_warnings_of_a_fit(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 0.0), "AP", BODY)
    assert any("alpha is 0" in warning for warning in warnings_of(fit))
    weak = replace(fit, alpha=0.5, gain=0.001, gain_p=0.4, n_fallbacks=3)
    texts = " ".join(warnings_of(weak))
    assert "not significant" in texts
    assert "3 of 30" in texts
    assert warnings_of(replace(fit, alpha=0.5, gain=0.1, gain_p=0.001)) == []
    assert replace(fit, gain_p=float("nan")).to_json()["gain_p"] is None
