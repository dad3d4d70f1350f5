"""Calibration: finds the alpha that is right by construction, and is honest about what it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from reranker.accounts import InputAccount, LeftOut
from reranker.engines.protocol import Engine
from reranker.engines.stored_ids import IdCheck
from reranker.errors import ConfigError, InputError
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.training_queries import TrainingQueries
from reranker.releases import Release, read_control, update_control
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibrate import (
    ALPHAS,
    FittedSignal,
    Gain,
    OrderComparison,
    Topic,
    _best,
    cross_validated,
    engine_run,
    fit_alpha,
    keep_in_release,
    lost_boosts,
    sample,
    topics_of_links,
    topics_of_qrels,
    topics_to_fit,
    warnings_of,
)
from reranker.rerank.search import calibration_of
from reranker.rerank.signals import Signal
from reranker.rerank.weighted_template import weighted_template
from tests.engines.memory import memory_engine
from tests.served import BM25, MEMORY_BM25, Served, model_of, random_documents, serve
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


def test_the_field_weights_of_the_lexical_score_become_a_body(served: Served) -> None:
    assert weighted_template(served.model.encoder) is None, "no tuned lexical score"
    encoder = model_of(served.documents, lexical=BM25).encoder
    text, fields = "{{query}}", ["title^2", "text"]
    multi_match = {"multi_match": {"query": text, "fields": fields, "type": "cross_fields"}}
    assert weighted_template(encoder) == {"query": multi_match}
    combined = {"query": {"combined_fields": {"query": text, "fields": fields}}}
    assert weighted_template(encoder, kind="combined_fields") == combined
    boost = (2.5 * 2.0 / 3.5) / (2.5 * 1.0 / 2.5)  # of one word at mean length, k1 = 1.5
    summed = {"multi_match": {"query": text, "fields": [f"title^{boost:.3g}", "text"], "type": "most_fields"}}
    assert weighted_template(encoder, kind="most_fields") == {"query": summed}
    clauses = {"filter": [{"term": {"tag": "x"}}], "must_not": {"term": {"tag": "y"}}}
    like = {"query": {"bool": {"must": {"match": {"text": "{{query}}"}}, **clauses}}}
    assert weighted_template(encoder, like) == {"query": {"bool": {"must": [multi_match], **clauses}}}
    remembered = model_of(served.documents, lexical=MEMORY_BM25).encoder
    assert "['title^2', 'text']" in str(weighted_template(remembered)), "the memory has no field in the engine"
    tfidf = model_of(served.documents, lexical=LexicalSettings("tfidf", (0.0, 2.0), (1.0, 1.0))).encoder
    assert weighted_template(tfidf) == {"query": {"match": {"text": {"query": "{{query}}"}}}}
    only_memory = replace(MEMORY_BM25, field_weights=(0.0, 0.0, 1.0))
    assert weighted_template(model_of(served.documents, lexical=only_memory).encoder) is None


def test_three_orders_are_compared_on_held_out_topics(served: Served) -> None:
    topics = topics_whose_answers_come_from(served, 1.0)
    topics[0] = replace(topics[0], excluded=frozenset([next(iter(topics[0].grades))]))
    reranker = reranker_of(served)
    fit = fit_alpha(reranker, topics, "nDCG@10", BODY)
    compared = OrderComparison.of(fit, topics, engine_run(reranker, topics, BODY))
    assert compared.means["weights"] == compared.means["engine"], "the same body"
    assert compared.means["engine"]["nDCG@10"] == pytest.approx(fit.engine)
    assert compared.means["model"]["nDCG@10"] == pytest.approx(fit.held_out)
    test = compared.differences["model", "engine"]["nDCG@10"]
    assert (test.difference, test.standard_error) == pytest.approx((fit.gain, fit.gain_error))
    assert compared.differences["weights", "engine"]["AP"].difference == 0.0
    entry = compared.to_json()["differences"]["model - weights"]["AP"]
    assert entry["difference"] > entry["interval"] > 0 and "runs" not in fit.to_json()


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
    known = replace(fit, held_out_from_training=False)
    keep_in_release(served.engine, served.index, model.model_id, BODY, 61, known)
    kept = read_control(served.engine, served.index).release(model.model_id).calibration
    assert kept[Calibration.key(body_hash(BODY), 61)]["held_out_from_training"] is False
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
    accounts: list[InputAccount] = []
    topics = topics_of_qrels(tmp_path / "qrels", tmp_path / "queries", check=IdCheck(accounts.append))
    assert accounts == [InputAccount("judgments", 4)]
    assert topics == [Topic("red shoe", {"a": 2.0, "b": 0.0}), Topic("grey", {"d": 1.0})]
    (tmp_path / "other").write_text("z\tred\n")
    with pytest.raises(InputError, match="query ids of both files"):
        topics_of_qrels(tmp_path / "qrels", tmp_path / "other", check=IdCheck(accounts.append))
    assert accounts[1] == InputAccount("judgments", 0, (LeftOut("unknown query id", 4, ("q1", "q2", "q3")),))


def test_topics_of_links(served: Served, tmp_path: Path) -> None:
    (tmp_path / "links").write_text("a\tb\na\tc\na\ta\nb\tc\nz\ta\ne\ta\n")
    (tmp_path / "docs").write_text(
        '{"id": "a", "title": "Running shoes", "text": "They run. They run fast!"}\n'
        '{"id": "b", "title": "", "text": "one two three"}\n{"id": "c", "title": "x"}\n{"id": "e", "title": ""}\n'
    )
    encoder = served.model.encoder
    files = (tmp_path / "links", tmp_path / "docs", encoder)
    accounts: list[InputAccount] = []
    topics = topics_of_links(*files, "title", 0, check=IdCheck(accounts.append))
    assert accounts == [InputAccount("links", 4, (LeftOut("unknown query id", 1, ("z",)),))]
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


# --- queries that the model was trained on


def numbered(n: int, known: int = 0) -> tuple[list[Topic], TrainingQueries]:
    """Return topics, and training queries with the texts of the first ``known`` ones in other spelling."""
    topics = [Topic(f"word{number} word{number + 1}", {"d1": 1.0}) for number in range(n)]
    queries = TrainingQueries.of("0" * 32, [f" {topic.query.upper()}\t" for topic in topics[:known]], [])
    assert queries is not None
    return topics, queries


@pytest.mark.parametrize(
    ("n", "known", "n_used", "held_out"),
    [
        (100, 0, 100, True),
        (100, 70, 30, True),
        (100, 71, 100, False),
        (100, 100, 100, False),
        (12, 0, 12, True),
        (12, 1, 12, False),
        (0, 0, 0, True),
    ],
)
def test_training_queries_are_left_out_if_enough_others_remain(n: int, known: int, n_used: int, held_out: bool) -> None:
    topics, queries = numbered(n, known)
    chosen = topics_to_fit(topics, queries)
    assert chosen.topics == topics[-n_used:] if n_used else not chosen.topics
    assert (chosen.n_given, chosen.n_learned, chosen.held_out) == (n, known, held_out)
    assert ("held-out" not in chosen.sentence()) and (str(n - known) in chosen.sentence())
    assert ("on training queries" in chosen.sentence()) == (not held_out)


def test_source_documents_of_training_links_are_left_out_by_their_ids() -> None:
    topics = [Topic("one title", {"x": 1.0}, frozenset([f"d{number}"])) for number in range(50)]
    queries = TrainingQueries.of("0" * 32, ["d7"], ["d3", "d4", "x"])
    chosen = topics_to_fit(topics, queries)
    assert chosen.topics == [*topics[:3], *topics[5:]]
    assert chosen.held_out and chosen.n_learned == 2


def test_a_model_without_a_list_of_its_training_queries_is_unknown() -> None:
    topics, _ = numbered(40)
    chosen = topics_to_fit(topics, None)
    assert chosen.topics == topics
    assert chosen.held_out is None and chosen.n_learned is None
    assert "it is unknown whether" in chosen.sentence()


# --- boosts that a high alpha removes


BOOSTED = {
    "query": {
        "function_score": {
            "query": BODY["query"],
            "functions": [{"field_value_factor": {"field": "votes"}}, {"gauss": {"released": {"scale": "10d"}}}],
        }
    },
    "indices_boost": [{"new": 2.0}],
}


def test_boosts_that_a_high_alpha_removes_are_named_with_the_remedy(served: Served) -> None:
    fit = replace(fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0), "AP", BODY), gain_p=0.0)
    (warning,) = warnings_of(replace(fit, alpha=0.95, gain=0.1), BOOSTED)
    assert "a weight of only 0.05" in warning
    assert "function_score (votes, released), indices_boost" in warning
    assert "--signals votes,released" in warning and "--alpha 0.9 gives it the weight 0.1" in warning
    (warning,) = warnings_of(replace(fit, alpha=1.0, gain=0.1), {**BODY, "indices_boost": [{"new": 2.0}]})
    assert "weight of only 0," in warning and "--signals" not in warning


@pytest.mark.parametrize(("alpha", "n_lost"), [(0.0, 0), (0.9, 0), (0.92, 2), (1.0, 2)])
def test_boosts_are_lost_from_a_weight_of_the_engine_below_a_tenth(served: Served, alpha: float, n_lost: int) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0), "AP", BODY)
    assert len(lost_boosts(replace(fit, alpha=alpha), BOOSTED)) == n_lost
    assert lost_boosts(replace(fit, alpha=alpha), BODY) == []
    gain = Gain(0.1, 0.01, 0.001)
    fitted = tuple(FittedSignal(Signal(field, weight=0.5), gain, 0.0) for field in ("votes", "released"))
    signals = replace(fit, alpha=alpha, signals=fitted)
    assert [boost.clause for boost in lost_boosts(signals, BOOSTED)] == ["indices_boost"] * bool(n_lost)
    useless = replace(signals, signals=(fitted[0], replace(fitted[1], signal=Signal("released"))))
    assert len(lost_boosts(useless, BOOSTED)) == n_lost


# --- hostile and degenerate input


class OddScores:
    """An engine that gives each hit another score: ``change`` maps the scores of a page."""

    def __init__(self, engine: Engine, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._engine, self._change = engine, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search(self, *args: Any, **options: Any) -> Any:
        page = self._engine.search(*args, **options)
        scores = self._change(np.array([hit.score for hit in page.hits], float)).tolist()
        return replace(
            page,
            hits=tuple(msgspec.structs.replace(hit, score=score) for hit, score in zip(page.hits, scores, strict=True)),
        )


ODD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": np.ones_like,
    "zero": np.zeros_like,
    "negative": lambda scores: scores - 100.0,
    "huge": lambda scores: scores * 1e29 / 100,
    "some NaN": lambda scores: np.where(np.arange(len(scores)) % 3 == 0, np.nan, scores),
    "all NaN": lambda scores: np.full_like(scores, np.nan),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scores_of_the_engine_give_a_finite_fit(served: Served, name: str) -> None:
    topics = topics_whose_answers_come_from(served, ALPHAS[16])
    engine: Any = OddScores(served.engine, ODD[name])
    settings = RerankSettings(window=60, deadline_ms=None)
    fit = fit_alpha(Reranker(engine, served.index, served.model, settings=settings), topics, "nDCG@10", BODY)
    assert 0.0 <= fit.alpha <= 1.0
    means = np.array([mean for _, mean in fit.curve])
    assert np.isfinite([*means, fit.held_out, fit.gain, fit.ceiling]).all()
    plain = dict(fit_alpha(reranker_of(served), topics, "nDCG@10", BODY).curve)
    assert dict(fit.curve)[1.0] == pytest.approx(plain[1.0]), "the model's order does not depend on these scores"
    if name in ("constant", "zero"):
        np.testing.assert_allclose(means[1:], means[-1])
    flat = name in ("constant", "zero", "all NaN")
    assert fit.n_equal_scores == (len(topics) if flat else 0)
    assert any("30 of 30 queries the same score" in warning for warning in warnings_of(fit)) == flat
    if name == "negative":  # a constant added to all scores of a query changes no order
        np.testing.assert_allclose(means, list(plain.values()), atol=0.02)
    json.dumps(fit.to_json(), allow_nan=False)


@pytest.mark.parametrize("n", [1, 9])
def test_fewer_than_ten_queries_are_refused_with_the_number_that_is_needed(served: Served, n: int) -> None:
    with pytest.raises(InputError, match=rf"{n} queries are too few to fit alpha: at least 10 are needed"):
        fit_alpha(reranker_of(served), [Topic("word1", {"d1": 1.0})] * n, "nDCG@10", BODY)


def test_ten_queries_suffice(served: Served) -> None:
    fit = fit_alpha(reranker_of(served), topics_whose_answers_come_from(served, 1.0, 10), "nDCG@10", BODY)
    assert fit.n_queries == 10 and fit.alpha > 0 and np.isfinite([fit.held_out_error, fit.gain_p]).all()


@pytest.mark.parametrize("grade", [0.0, 1.0, 3.0])
def test_judgments_of_one_grade_leave_the_engines_order(served: Served, grade: float) -> None:
    """If every candidate has the same grade, no order is better than another."""
    topics = [Topic(f"word{n}", dict.fromkeys(served.documents, grade)) for n in range(12)]
    fit = fit_alpha(reranker_of(served), topics, "nDCG@10", BODY)
    assert fit.alpha == 0.0 and fit.gain == 0.0
    assert fit.engine == pytest.approx(min(grade, 1.0)) and fit.ceiling == pytest.approx(min(grade, 1.0))
    assert any("alpha is 0" in warning for warning in warnings_of(fit))
    json.dumps(fit.to_json(), allow_nan=False)


def test_judgments_without_a_relevant_document_are_refused(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1\ta\t0\nq2\tb\t0\n")
    (tmp_path / "queries").write_text("q1\tred shoe\nq2\tblue\n")
    with pytest.raises(InputError, match="must have a grade above 0"):
        topics_of_qrels(tmp_path / "qrels", tmp_path / "queries")
