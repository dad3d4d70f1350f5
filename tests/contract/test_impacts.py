"""Impacts on engines: the sum is the model's, updates replace it, and only changes are written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.build import BuildOptions, build_index
from indexer.encoding import present_routes
from indexer.garbage import collect, plan_collection, uninstall
from indexer.renewal import Target, sync
from indexer.versions import live_mapping, promote, rollback
from reranker.config import IMPACT_BOOST, IMPACT_MODES, ImpactMode, RouteName
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.analysis import analyzer_definition
from reranker.engines.bodies import fill_template
from reranker.engines.impacts import IMPACTS_ALIAS, impacts_clause, key_of, stored_words, with_impacts
from reranker.engines.protocol import Engine
from reranker.engines.vectors import field_name
from reranker.errors import EncoderMismatch, EngineRejected, EngineUnavailable, GateRefused, InputError, Unsupported
from reranker.evaluation import evaluate_run
from reranker.models.impacts import Impacts, names_of_words, query_words
from reranker.models.ranking_model import RankingModel
from reranker.models.repeated import RepeatedQueries
from reranker.records import ReasonKind
from reranker.rerank import RerankedPage, Reranker, RerankSettings
from reranker.rerank.calibration.boost import BOOSTS, fit_boost, keep_boost
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.explain import DEFAULT_PAIRS
from reranker.rerank.impacts import ServedImpacts
from reranker.rerank.search import open_reranker
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import inner_products
from reranker.text.vocabulary import VocabularyBuilder
from tests.contract.test_indexer import filled, stored, write_file
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng
from tests.served import MEMORY_BM25, Documents, model_of, random_documents, with_mean_vector

LAST_BIT = 2.0**-8
"""Largest relative error of a weight of 9 bits."""


@pytest.fixture(params=["tantivy", "elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    place = tmp_path / "engine" if request.param == "tantivy" else request.getfixturevalue(f"{request.param}_url")
    opened = open_engine(f"{request.param}:{place}", EngineSettings(read_timeout_s=60))
    yield opened
    opened.close()


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    stem = f"impacts-{uuid.uuid4().hex[:12]}"
    yield stem
    for candidate in (stem, f"{stem}-000001"):
        for concrete in engine.index_names(candidate):
            engine.delete_index(concrete)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))


def documents_of_words() -> Documents:
    """Return random documents, some with words that engines treat in special ways, or with no word."""
    documents = random_documents(120)
    documents["d3"]["text"] += " 3.11 node.js c++ über 漢字"
    documents["d4"]["title"] = "node.js"
    documents["d7"] |= {"title": "", "text": ""}
    return documents


def model_with_impacts(documents: Documents, seed: int = 1, **options: Any) -> RankingModel:
    return with_mean_vector(model_of(documents, lexical=MEMORY_BM25, seed=seed, **options), documents)


def indexed(engine: Engine, name: str) -> tuple[Documents, RankingModel]:
    """Fill an index with documents and the impacts of a model; return both."""
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    sync(Target(engine, name, model, routes=("impacts",)))
    engine.refresh(name)
    return documents, model


def queries_of(documents: Documents, n: int) -> list[str]:
    rng = seeded_rng(9)
    words = sorted({word for one in documents.values() for word in f"{one['title']} {one['text']}".split()})
    drawn = [" ".join(rng.choice(words, size=rng.integers(1, 7))) for _ in range(n - 4)]
    return [*drawn, "node.js 3.11", "neverseen9 word0", "lumber", " ".join(words[:60])]


def expected_sums(model: RankingModel, documents: Documents, query: str, field_type: str) -> dict[str, float]:
    """Return the sum of each document with a word of the query, by what the engine was sent."""
    encoded = model.encoder.encode(list(documents.values()), list(documents))
    impacts = Impacts(model)
    keys = [key_of(word, field_type) for word in query_words(model, query)]
    sums = {}
    for identifier, words in zip(documents, impacts.by_word(encoded, list(documents.values())), strict=True):
        held = stored_words(words, field_type)
        if found := [held[key] for key in keys if key in held]:
            sums[identifier] = float(np.sum(found))
    return sums


def sums_of_engine(engine: Engine, name: str, model: RankingModel, query: str) -> dict[str, float]:
    """Return the engine's score of each document that the clause finds."""
    field_type = engine.capabilities().sparse_terms
    words = query_words(model, query)
    clause = impacts_clause(field_name(model.encoder_id, "impacts"), field_type, words)
    answer = engine.search(name, {"query": clause, "size": 1000, "_source": False})
    return {hit.id: hit.score or 0.0 for hit in answer.hits}


def test_the_engine_adds_up_what_the_model_says(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = documents_of_words()
    model = model_with_impacts(documents, max_words=40)  # some words are not listed
    path = write_file(tmp_path / "docs.jsonl", documents)
    report = build_index(engine, name, path, model, BuildOptions(routes=("impacts",)))
    assert (report.load.bulk.indexed, report.load.bulk.rejected, report.live) == (120, 0, True)
    engine.refresh(name)
    field_type = engine.capabilities().sparse_terms
    n_found = 0
    for query in queries_of(documents, 200):
        expected, found = (
            expected_sums(model, documents, query, field_type),
            sums_of_engine(engine, name, model, query),
        )
        assert found.keys() == expected.keys(), query
        for identifier, value in found.items():
            assert value == pytest.approx(expected[identifier], rel=1e-3)
        n_found += len(found)
    assert n_found > 5_000
    remembered = sums_of_engine(engine, name, model, "lumber")
    assert set(remembered) == {"d3"}, "a word that stands in no document, but in a query that was remembered"


def test_the_sum_is_within_the_stored_precision(engine: Engine, name: str, tmp_path: Path) -> None:
    documents = documents_of_words()
    model = model_with_impacts(documents)
    build_index(engine, name, write_file(tmp_path / "docs.jsonl", documents), model, BuildOptions(routes=("impacts",)))
    engine.refresh(name)
    encoded = model.encoder.encode(list(documents.values()), list(documents))
    exact = dict(zip(documents, Impacts(model).by_word(encoded, list(documents.values())), strict=True))
    for word in ("word0", "word7", "node", "js"):
        for identifier, score in sums_of_engine(engine, name, model, word).items():
            assert score == pytest.approx(exact[identifier][word], rel=LAST_BIT)


def test_an_updated_document_keeps_no_impact_of_its_old_text(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    target = Target(engine, name, model, routes=("impacts",))
    assert sync(target).written == 120
    assert present_routes(engine.index_info(name).properties, model.encoder_id) == ("impacts",)
    assert sync(target).written == 0
    changed = {"d1": {"title": "word0", "text": "word9 word11"}, "d2": {"title": "", "text": ""}}
    engine.bulk(name, [WriteOp("update", key, source) for key, source in changed.items()])
    assert sync(target).written == 2
    engine.refresh(name)
    now: Documents = {key: {**source, **changed.get(key, {})} for key, source in documents.items()}
    for query in queries_of(documents, 40):
        expected = expected_sums(model, now, query, engine.capabilities().sparse_terms)
        assert sums_of_engine(engine, name, model, query) == pytest.approx(expected, rel=1e-3)


def test_a_new_query_side_writes_only_documents_whose_impacts_change(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    sync(Target(engine, name, model, routes=("impacts",)))
    U = model.U.copy()
    (rare,) = model.query_vocabulary.ids(["漢"])
    U[rare] *= -2
    other = replace(model, U=U)
    report = sync(Target(engine, name, other, routes=("impacts",)))
    assert 0 < report.written == report.other_impacts < 120
    assert sync(Target(engine, name, other, routes=("impacts",))).written == 0
    engine.refresh(name)
    for query in ("漢字", "word0 word3"):
        expected = expected_sums(other, documents, query, engine.capabilities().sparse_terms)
        assert sums_of_engine(engine, name, other, query) == pytest.approx(expected, rel=1e-3)


def test_preferences_for_a_repeated_query_are_added_on_every_way_to_a_page(engine: Engine, name: str) -> None:
    _, model = indexed(engine, name)
    sync(Target(engine, name, model, routes=("fetch", "impacts")))
    engine.refresh(name)
    body = {"query": {"match": {"text": "{{query}}"}}, "_source": False}
    plain = {hit.id: hit.score for hit in search_by(engine, name, model, body, "word3").hits}
    liked, disliked = sorted(plain, key=lambda one: plain[one])[0], max(plain, key=lambda one: plain[one])
    preferred = RepeatedQueries.of("0" * 32, {"word3": {liked: 50.0, disliked: -2.0, "gone": 1.0}})
    remembering = replace(model, repeated=preferred)
    for route in ("fetch", "impacts"):
        before, after = (
            {hit.id: hit.score for hit in search_by(engine, name, one, body, "WORD3 ", route).hits}
            for one in (model, remembering)
        )
        assert next(iter(after)) == liked, route
        moved = {one: after[one] - before[one] for one in before if one in after}
        # A clause takes nothing away: all others count like the least preferred document.
        least, boost = (-2.0, IMPACT_BOOST) if route == "impacts" else (0.0, 1.0)
        expected = {one: boost * (preferred.of_query("word3").get(one, least) - least) for one in moved}
        assert moved == pytest.approx(expected, rel=1e-4, abs=1e-3), route
        explained = search_by(engine, name, remembering, body, "word3", route, explain=True).explanations
        shown = {one.id: row.value for one in explained for row in one.contributions if row.kind == "preference"}
        wanted = {one: value for one, value in expected.items() if value}
        assert {one: shown.get(one) for one in wanted} == pytest.approx(wanted, rel=1e-4)
        assert (
            search_by(engine, name, remembering, body, "word4", route).hits
            == search_by(engine, name, model, body, "word4", route).hits
        )


def search_by(
    engine: Engine,
    name: str,
    model: RankingModel,
    body: dict[str, Any],
    query: str,
    route: RouteName = "fetch",
    explain: bool = False,
) -> RerankedPage:
    settings = RerankSettings(alpha=1.0, deadline_ms=None, window=200)
    page = Reranker(engine, name, model, route=route, settings=settings).search(query, body, size=100, explain=explain)
    assert page.reranked, page.reason
    return page


def test_a_body_keeps_its_hits_or_finds_more_within_its_filters(engine: Engine, name: str) -> None:
    documents, model = indexed(engine, name)
    for word in ("word3", "word8", "word20"):
        own = {"query": {"bool": {"must": {"match": {"text": word}}, "filter": {"term": {"tag": "x"}}}}, "size": 1000}
        clause = impacts_clause(
            field_name(model.encoder_id, "impacts"), engine.capabilities().sparse_terms, query_words(model, word), 2.0
        )
        plain, reordered, found = (
            {hit.id: hit.score or 0.0 for hit in engine.search(name, body).hits}
            for body in (own, with_impacts(own, clause, "reorder"), with_impacts(own, clause, "find"))
        )
        sums = expected_sums(model, documents, word, engine.capabilities().sparse_terms)
        assert plain.keys() == reordered.keys() <= found.keys()
        assert {documents[identifier]["tag"] for identifier in found} == {"x"}
        assert found.keys() == {*plain, *(key for key in sums if documents[key]["tag"] == "x")}
        for identifier, score in found.items():
            expected = plain.get(identifier, 0.0) + 2.0 * sums.get(identifier, 0.0)
            assert score == pytest.approx(expected, rel=2e-3)
            assert reordered.get(identifier, score) == pytest.approx(score, rel=1e-5)


def test_everything_else_of_a_search_works_as_before(engine: Engine, name: str) -> None:
    _, model = indexed(engine, name)
    clause = impacts_clause(
        field_name(model.encoder_id, "impacts"),
        engine.capabilities().sparse_terms,
        query_words(model, "word3 word8"),
    )
    own = {"query": {"match": {"text": "word3 word8"}}, "size": 5}
    extras: list[Mapping[str, Any]] = [
        {"aggs": {"tags": {"terms": {"field": "tag"}}}},
        {"highlight": {"fields": {"text": {}}}},
        {"from": 5},
        {"collapse": {"field": "tag"}},
        {"post_filter": {"term": {"tag": "y"}}},
        {"sort": ["_score", {"tag": "asc"}], "search_after": [1.0, "x"]},
        {"min_score": 1.0},
        {"explain": True},
        {"rescore": {"window_size": 5, "query": {"rescore_query": {"match": {"title": "word3"}}}}},
    ]
    for extra in extras:
        body = with_impacts({**own, **extra}, clause, "reorder")
        if engine.in_process and "from" not in extra:
            # The embedded engine has none of these parts, with impacts or without.
            with pytest.raises(Unsupported, match=f"body part '({'|'.join(extra)})'"):
                engine.search(name, body)
            continue
        answer = engine.search(name, body)
        assert answer.raw["hits"]["total"]["value"] or "min_score" in extra
        if "aggs" in extra:
            assert answer.raw["aggregations"] == engine.search(name, {**own, **extra}).raw["aggregations"]
        if "highlight" in extra:
            assert all(hit.raw["highlight"]["text"] for hit in answer.hits)
        if "explain" in extra:
            assert "impacts" in str(answer.hits[0].raw["_explanation"])


def aliased_field(engine: Engine, name: str) -> str:
    alias = engine.index_info(name).properties.get(IMPACTS_ALIAS, {})
    return str(alias.get("path", ""))


def test_the_alias_follows_the_live_version(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    first, second = (model_with_impacts(documents, seed) for seed in (1, 2))
    for model in (first, second):
        sync(Target(engine, name, model, routes=("impacts",)))
    assert aliased_field(engine, name) == "", "no version is live"
    promote(engine, name, first.model_id)
    if engine.capabilities().sparse_terms != "sparse_vector":
        assert aliased_field(engine, name) == "", "an alias would find nothing"
        assert ServedImpacts.of_index(engine, name, first).field == field_name(first.encoder_id, "impacts")
        return
    assert aliased_field(engine, name) == field_name(first.encoder_id, "impacts")
    assert ServedImpacts.of_index(engine, name, first).field == IMPACTS_ALIAS
    assert ServedImpacts.of_index(engine, name, second).field == field_name(second.encoder_id, "impacts")
    for live in (second, first):
        if live is second:
            promote(engine, name, second.model_id)
        else:
            rollback(engine, name)
        assert aliased_field(engine, name) == field_name(live.encoder_id, "impacts")
        query = "word0 word3"
        clause = ServedImpacts.of_index(engine, name, live).clause(query)
        by_alias = {hit.id: hit.score for hit in engine.search(name, {"query": clause, "size": 200}).hits}
        assert by_alias == pytest.approx(sums_of_engine(engine, name, live, query))
        assert IMPACTS_ALIAS in live_mapping(engine, name)["properties"]


def test_a_promotion_whose_alias_could_not_move_is_finished_by_the_same_command(
    engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.capabilities().sparse_terms != "sparse_vector":
        pytest.skip("there is no alias of impacts on this engine")
    documents = documents_of_words()
    filled(engine, name, documents)
    first, second = (model_with_impacts(documents, seed) for seed in (1, 2))
    for model in (first, second):
        sync(Target(engine, name, model, routes=("impacts",)))
    promote(engine, name, first.model_id)

    def refuse(index: str, properties: Mapping[str, Any]) -> None:
        raise EngineUnavailable("the master has gone", engine="elasticsearch")

    with monkeypatch.context() as broken:
        broken.setattr(engine, "put_properties", refuse)
        with pytest.raises(EngineUnavailable):
            promote(engine, name, second.model_id)
    assert aliased_field(engine, name) == field_name(first.encoder_id, "impacts"), "the old one is still served"
    assert sums_of_engine(engine, name, first, "word0")
    promote(engine, name, second.model_id)
    assert aliased_field(engine, name) == field_name(second.encoder_id, "impacts")


def test_a_query_of_500_words_is_answered(engine: Engine, name: str) -> None:
    documents = random_documents(60, n_words=500)
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    sync(Target(engine, name, model, routes=("impacts",)))
    engine.refresh(name)
    query = " ".join(f"word{number}" for number in range(400)) + " " + " ".join(f"other{n}" for n in range(100))
    expected = expected_sums(model, documents, query, engine.capabilities().sparse_terms)
    assert sums_of_engine(engine, name, model, query) == pytest.approx(expected, rel=1e-3)
    page = reranker_of(engine, name, model, "impacts").search(query, {"query": {"match": {"text": "{{query}}"}}})
    assert page.reranked


def test_impacts_of_another_query_side_are_not_promoted_silently(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    first = model_with_impacts(documents)
    second = replace(first, U=first.U * np.float32(2))
    assert first.encoder_id == second.encoder_id
    for model in (first, second):
        sync(Target(engine, name, model, routes=("impacts",)))
        promote(engine, name, model.model_id)
    with pytest.raises(GateRefused, match=f"those of model {second.model_id[:12]}"):
        rollback(engine, name)
    with pytest.raises(GateRefused, match="run `ssi sync` with the model first"):
        promote(engine, name, first.model_id)
    assert sync(Target(engine, name, first, routes=("impacts",))).other_impacts > 0
    assert rollback(engine, name).live == first.model_id


def test_an_alias_name_that_is_taken_stops_nothing_silently(engine: Engine, name: str) -> None:
    if engine.capabilities().sparse_terms != "sparse_vector":
        pytest.skip("there is no alias of impacts on this engine")
    documents = documents_of_words()
    filled(engine, name, documents)
    engine.put_properties(name, {IMPACTS_ALIAS: {"type": "keyword"}})
    model = model_with_impacts(documents)
    sync(Target(engine, name, model, routes=("impacts",)))
    with pytest.raises(InputError, match="that is no alias"):
        promote(engine, name, model.model_id)


def test_the_engines_own_analyzer_adds_up_the_same(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    engine.refresh(name)
    config = AnalyzerConfig(kind="engine", engine_field=f"{name}/text")
    plain = model_with_impacts(documents)
    analyzer = make_analyzer(
        config, lambda texts: engine.analyze(name, "text", texts), analyzer_definition(engine, name, "text")
    )
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens([f"{one['title']} {one['text']}" for one in documents.values()]))
    same = set(builder.build().words) & set(plain.query_vocabulary.words)
    model = replace(plain, encoder=replace(plain.encoder, analyzer=analyzer), query_vocabulary=plain.query_vocabulary)
    sync(Target(engine, name, model, routes=("impacts",)))
    engine.refresh(name)
    served = ServedImpacts.of_index(engine, name, model)
    with pytest.raises(InputError, match="not those of an analyzer in the index"):
        ServedImpacts(plain, served.field, "sparse_vector").template_clause(engine, name)
    if served.field_type != "sparse_vector":
        with pytest.raises(InputError, match="does not search a field of the type rank_features by a text"):
            served.template_clause(engine, name)
        return
    template = {"query": served.template_clause(engine, name, 2.0), "size": 200}
    for word in sorted(same)[:20]:
        by_text, by_words = (
            {hit.id: hit.score for hit in engine.search(name, body).hits}
            for body in (fill_template(template, word), {"query": served.clause(word, 2.0), "size": 200})
        )
        assert by_text
        assert by_text == pytest.approx(by_words)


def reranker_of(engine: Engine, name: str, model: RankingModel, route: RouteName, **settings: Any) -> Reranker:
    given = RerankSettings(deadline_ms=None, **settings)
    return Reranker(engine, name, model, route=route, settings=given)


def test_a_search_by_impacts_is_the_engines_own_answer(engine: Engine, name: str) -> None:
    _, model = indexed(engine, name)
    body: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}, "size": 7}
    if not engine.in_process:
        body["aggs"] = {"tags": {"terms": {"field": "tag"}}}
    for mode in IMPACT_MODES:
        reranker = reranker_of(engine, name, model, "impacts", mode=mode, boost=3.0)
        reranker.check(body)
        for query in ("word3 word8", "word20", "node.js"):
            page = reranker.search(query, body, from_=2)
            clause = ServedImpacts.of_index(engine, name, model).clause(query, 3.0)
            asked = with_impacts({**fill_template(body, query), "from": 2}, clause, mode)
            expected = engine.search(name, asked)
            assert (page.reranked, page.fallback, page.total) == (True, False, expected.total)
            assert [(hit.id, hit.score) for hit in page.hits] == [(hit.id, hit.score) for hit in expected.hits]
            assert page.raw.get("aggregations") == expected.raw.get("aggregations")
            assert not any(key.startswith("ssi_") for hit in page.hits for key in hit.source)
    refused: list[tuple[str, dict[str, Any], ReasonKind]] = [("...", {}, ReasonKind.EMPTY_QUERY)]
    if not engine.in_process:  # which sorts by scores only, and does not collapse
        assert reranker.search("word3", {**body, "collapse": {"field": "tag"}}).reranked
        refused.append(("word3", {"sort": ["tag"]}, ReasonKind.NOT_RERANKABLE))
    for query, more, kind in refused:
        page = reranker.search(query, {**body, **more})
        assert not page.reranked
        assert page.reason is not None
        assert page.reason.kind is kind
        own = engine.search(name, fill_template({**body, **more}, query))
        assert [hit.id for hit in page.hits] == [hit.id for hit in own.hits]


@pytest.mark.parametrize("mode", IMPACT_MODES)
def test_the_boost_that_made_the_answers_is_found_and_used(
    engine: Engine, name: str, mode: ImpactMode, tmp_path: Path
) -> None:
    _, model = indexed(engine, name)
    promote(engine, name, model.model_id)
    body: dict[str, Any] = {"query": {"match": {"text": {"query": "{{query}}", "boost": 3}}}}
    queries = [f"word{number} word{number * 7 % 30} word{number * 3 % 20}" for number in range(30)]
    served = ServedImpacts.of_index(engine, name, model)

    def ranked(boost: float, size: int) -> dict[str, list[str]]:
        """Return the order of the engine itself."""
        bodies = (
            with_impacts({**fill_template(body, query), "size": size}, served.clause(query, boost), mode)
            for query in queries
        )
        return {str(number): [hit.id for hit in engine.search(name, one).hits] for number, one in enumerate(bodies)}

    answers = ranked(0.5, 5)
    topics = [Topic(query, dict.fromkeys(answers[str(number)], 1.0)) for number, query in enumerate(queries)]
    reranker = reranker_of(engine, name, model, "impacts", mode=mode, window=50)
    fit = fit_boost(reranker, topics, "nDCG@10", body)
    assert (fit.boost, fit.n_fallbacks) == (0.5, 0)
    assert fit.fitted == dict(fit.curve)[0.5] == pytest.approx(1.0)
    assert fit.default == dict(fit.curve)[IMPACT_BOOST] < 1
    qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
    assert sorted(BOOSTS) == [boost for boost, _ in fit.curve]
    for boost, mean in fit.curve:
        values = evaluate_run(qrels, ranked(boost, 10), ["nDCG@10"])["nDCG@10"]
        assert mean == pytest.approx(np.mean(list(values.values())))
    keep_boost(engine, name, model.model_id, body, fit)
    fitted, given = (
        open_reranker(engine, name, model, tmp_path, route="impacts", settings=settings, body=body)
        for settings in (RerankSettings(mode=mode), RerankSettings(mode=mode, boost=IMPACT_BOOST))
    )
    for reranker, boost in ((fitted, 0.5), (given, IMPACT_BOOST)):
        found = {str(number): reranker.search(query, body, size=10).hits for number, query in enumerate(queries)}
        assert {number: [hit.id for hit in hits] for number, hits in found.items()} == ranked(boost, 10)


def test_an_explanation_names_the_stored_impact_of_each_word(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents, max_words=40)  # some words are not listed
    sync(Target(engine, name, model, routes=("impacts",)))
    engine.refresh(name)
    encoded, impacts = model.encoder.encode(list(documents.values()), list(documents)), Impacts(model)
    field_type = engine.capabilities().sparse_terms
    by_word = impacts.by_word(encoded, list(documents.values()))
    stored_of = {key: stored_words(words, field_type) for key, words in zip(documents, by_word, strict=True)}
    body: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}, "size": 20}
    for mode in IMPACT_MODES:
        reranker = reranker_of(engine, name, model, "impacts", mode=mode, boost=3.0)
        for query in ("word3 word8", "word20 neverseen9 word3 word3", "node.js word1", "word30 word29 word28"):
            page = reranker.search(query, body, explain=True)
            own = {hit.id: hit.score for hit in engine.search(name, {**fill_template(body, query), "size": 200}).hits}
            assert len(page.explanations) == len(page.hits) > 0
            for hit, explanation in zip(page.hits, page.explanations, strict=True):
                *words, others, of_body = explanation.contributions
                assert (others.kind, of_body.kind) == ("others", "engine")
                assert (explanation.id, explanation.score) == (hit.id, hit.score)
                held = stored_of[hit.id]
                sums = {
                    word: sum(held.get(key_of(name, field_type), 0.0) for name in names)
                    for word, names in names_of_words(model, query).items()
                }
                expected = {word: value for word, value in sums.items() if value}
                assert {row.query_word: row.weight for row in words} == pytest.approx(expected, rel=1e-3)
                assert all(row.kind == "impact" and row.value == 3.0 * row.weight for row in words)
                assert of_body.value == pytest.approx(own.get(hit.id, 0.0), rel=1e-5)
                assert of_body.value + sum(row.value for row in words) == pytest.approx(hit.score, rel=1e-5)
                assert others.value == pytest.approx(0.0, abs=1e-5 * hit.score)


def test_the_words_that_an_explanation_does_not_show_are_others(engine: Engine, name: str) -> None:
    _, model = indexed(engine, name)
    query = " ".join(f"word{number}" for number in range(30))
    page = reranker_of(engine, name, model, "impacts").search(
        query, {"query": {"match": {"text": "{{query}}"}}}, explain=True
    )
    for hit, explanation in zip(page.hits, page.explanations, strict=True):
        *words, others, _ = explanation.contributions
        assert len(words) == DEFAULT_PAIRS
        assert 0 < others.value < words[-1].value * 30
        assert sum(row.value for row in explanation.contributions) == pytest.approx(hit.score, rel=1e-9)


def test_impacts_as_a_first_stage_add_what_the_words_do_not_find(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    sync(Target(engine, name, model, routes=("fetch", "impacts")))
    engine.refresh(name)
    body = {"query": {"bool": {"must": {"match": {"text": "{{query}}"}}, "filter": {"term": {"tag": "x"}}}}, "size": 40}
    exact = reranker_of(engine, name, model, "fetch", retrieve="impacts", alpha=1.0, window=100)
    exact.check(body)
    page = exact.search("word25", body)
    assert page.reranked
    assert {documents[hit.id]["tag"] for hit in page.hits} == {"x"}
    plain = {hit.id for hit in engine.search(name, fill_template(body, "word25")).hits}
    assert plain < {hit.id for hit in page.hits}
    assert any("found only by their impacts" in notice for notice in page.notices)
    encoded = model.encoder.encode(list(documents.values()), list(documents))
    query = model.encode_queries(["word25"])
    scores = query.vectors @ encoded.vectors.T + inner_products(query.rows, encoded.rows)
    by_id = dict(zip(documents, scores[0].tolist(), strict=True))
    for hit in page.hits:
        assert hit.score == pytest.approx(by_id[hit.id], abs=1e-4)


def test_without_impacts_the_command_is_named(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    model = model_with_impacts(documents)
    for route, settings in (("impacts", {}), ("fetch", {"retrieve": "impacts"})):
        with pytest.raises(EncoderMismatch, match=r"ssi revectorize .* --routes impacts"):
            reranker_of(engine, name, model, route, **settings).check()  # type: ignore[arg-type]


def test_gc_and_uninstall_know_impacts(engine: Engine, name: str) -> None:
    documents = documents_of_words()
    filled(engine, name, documents)
    old, new = (model_with_impacts(documents, seed) for seed in (1, 2))
    for model in (old, new):
        sync(Target(engine, name, model, routes=("impacts",)))
        promote(engine, name, model.model_id)
    report = collect(engine, plan_collection(engine, name, keep=0), rng=np.random.default_rng(0))
    assert report.emptied == 120
    engine.refresh(name)
    assert sums_of_engine(engine, name, old, "word0 word3") == {}
    expected = expected_sums(new, documents, "word0 word3", engine.capabilities().sparse_terms)
    assert sums_of_engine(engine, name, new, "word0 word3") == pytest.approx(expected, rel=1e-3), "they stay"
    uninstall(engine, plan_collection(engine, name, everything=True), rng=np.random.default_rng(0))
    assert stored(engine, name) == documents
    assert sums_of_engine(engine, name, new, "word0 word3") == {}


def test_a_map_would_be_merged_and_a_list_of_one_map_is_not(engine: Engine, name: str) -> None:
    """What the writing of impacts rests on: the engine's own rule for partial updates."""
    engine.create_index(name, {"properties": {"words": {"type": engine.capabilities().sparse_terms}}})
    engine.bulk(name, [WriteOp("index", "1", {"words": {"a": 1.0}}), WriteOp("index", "2", {"words": [{"a": 1.0}]})])
    engine.bulk(name, [WriteOp("update", "1", {"words": {"b": 2.0}}), WriteOp("update", "2", {"words": [{"b": 2.0}]})])
    engine.refresh(name)
    field_type = engine.capabilities().sparse_terms
    hits = {
        word: [h.id for h in engine.search(name, {"query": impacts_clause("words", field_type, [word])}).hits]
        for word in ("a", "b")
    }
    assert {word: set(ids) for word, ids in hits.items()} == {"a": {"1"}, "b": {"1", "2"}}


def test_a_weight_of_0_would_cost_the_whole_document(engine: Engine, name: str) -> None:
    field_type = engine.capabilities().sparse_terms
    engine.create_index(name, {"properties": {"words": {"type": field_type}}})
    (refused,) = engine.bulk(name, [WriteOp("index", "1", {"words": {"a": 0.0, "b": 1.0}})])
    assert refused.status == 400
    assert list(stored_words({"a": 0.0, "b": 1.0, "c": -1.0}, field_type)) == ["b"]


def test_an_engine_without_weighted_words_says_so() -> None:
    documents = random_documents(12)
    engine = memory_engine()
    engine.create_index("shop", {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
    with pytest.raises(Unsupported, match="no field type for words with weights"):
        sync(Target(engine, "shop", model_with_impacts(documents), routes=("impacts",)))
    with pytest.raises(EngineRejected):
        sync(Target(engine, "elsewhere", model_with_impacts(documents)))
