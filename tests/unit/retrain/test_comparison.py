"""The ranks that the gate compares are those that a search with the model gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reranker.engines import open_engine
from reranker.errors import ConfigError
from reranker.rerank import Reranker, RerankSettings
from reranker.retrain.served_ranks import ServedModel, ServingScores, among, check_template_body
from tests.engines.memory import memory_engine
from tests.seeds import seeded_rng
from tests.served import Served, model_of, random_documents, serve

BODY: dict[str, Any] = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}}
QUERIES = ("word3 word11", "word1", "word7 word20 word2", "nosuchword", "word40 word41 word5")


@pytest.fixture(scope="module", params=["memory", "tantivy"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    path = tmp_path_factory.mktemp("served")
    documents = random_documents(150)
    documents["empty"] = {"title": "", "text": "", "tag": "word3"}
    engine = memory_engine() if request.param == "memory" else open_engine(f"tantivy:{path / 'index'}")
    return serve(engine, "docs", path, documents, model_of(documents))


def other_model(served: Served, seed: int = 5) -> Any:
    return model_of({k: v for k, v in served.documents.items() if k != "empty"}, seed=seed)


@pytest.mark.parametrize("body", [None, BODY])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_ranks_are_those_of_a_search(served: Served, body: dict[str, Any] | None, alpha: float) -> None:
    """All hits of a query, ranked at once, stand as `Reranker.search` shows them: indexed model and new one."""
    new = other_model(served)
    scores = ServingScores(served.engine, "docs", [ServedModel(served.model, alpha), ServedModel(new, alpha)], body)
    found = scores.rank_window(QUERIES, 200)
    for number, model in enumerate((served.model, new)):
        settings = RerankSettings(window=200, deadline_ms=None, alpha=alpha)
        reranker = Reranker(served.engine, "docs", model, settings=settings)
        for query in QUERIES:
            expected = [hit.id for hit in reranker.search(query, body, size=200).hits]
            ranked = found[query]
            order = np.argsort(ranked.ranks[number])
            assert [ranked.documents[place] for place in order] == expected


def test_shown_documents_keep_the_order_they_have_in_the_whole_ranking(served: Served) -> None:
    rng = seeded_rng(3)
    rankers = [ServedModel(served.model, 0.6), ServedModel(other_model(served), 0.6), ServedModel(None)]
    scores = ServingScores(served.engine, "docs", rankers, BODY)
    whole = scores.rank_window(QUERIES, 1000)
    shown = {q: rng.permutation(whole[q].documents)[:7].tolist() for q in QUERIES}
    part = ServingScores(served.engine, "docs", rankers, BODY).rank_shown(shown)
    for query in QUERIES:
        assert sorted(part[query].documents) == sorted(shown[query])
        rank_of = dict(zip(whole[query].documents, whole[query].ranks.T.tolist(), strict=True))
        for number in range(len(rankers)):
            by_whole = sorted(shown[query], key=lambda one: rank_of[one][number])
            by_part = [part[query].documents[p] for p in np.argsort(part[query].ranks[number])]
            assert by_part == by_whole


def test_documents_that_are_gone_or_no_longer_match_are_left_out(served: Served) -> None:
    scores = ServingScores(served.engine, "docs", [ServedModel(None), ServedModel(served.model, 0.5)], BODY)
    matching = scores.rank_window(["word3"], 3)["word3"].documents
    found = scores.rank_shown({"word3": ["gone", "empty", *matching, matching[0]], "nosuchword": [*matching]})
    assert sorted(found["word3"].documents) == sorted(matching)
    assert found["word3"].ranks.shape == (2, 3)
    assert found["nosuchword"].documents == ()
    assert found["nosuchword"].ranks.shape == (2, 0)


def test_more_documents_than_one_request_takes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rankers = [ServedModel(None), ServedModel(served.model, 0.5)]
    documents = ServingScores(served.engine, "docs", rankers, BODY).rank_window(["word0 word1"], 200)
    whole = ServingScores(served.engine, "docs", rankers, BODY).rank_shown(
        {"word0 word1": documents["word0 word1"].documents}
    )
    monkeypatch.setattr("reranker.retrain.served_ranks.MAX_IDS", 7)
    parts = ServingScores(served.engine, "docs", rankers, BODY).rank_shown(
        {"word0 word1": documents["word0 word1"].documents}
    )
    assert len(whole["word0 word1"].documents) > 50
    first, second = whole["word0 word1"], parts["word0 word1"]
    ranks = [dict(zip(one.documents, one.ranks[1].tolist(), strict=True)) for one in (first, second)]
    assert ranks[0] == ranks[1]


def test_a_query_without_words_keeps_the_engines_order(served: Served) -> None:
    scores = ServingScores(
        served.engine,
        "docs",
        [ServedModel(None), ServedModel(served.model, 0.9)],
        {"query": {"bool": {"should": [{"match": {"text": "{{query}}"}}, {"match_all": {}}]}}},
    )
    found = scores.rank_window(["!!! ..."], 20)["!!! ..."]
    assert len(found.documents) == 20
    np.testing.assert_array_equal(found.ranks[1], found.ranks[0])
    np.testing.assert_array_equal(found.ranks[0], np.arange(1, 21))


def test_each_document_is_encoded_once_an_encoder(served: Served) -> None:
    same_encoder = ServedModel(served.model, 0.2)
    scores = ServingScores(
        served.engine, "docs", [ServedModel(served.model, 0.5), same_encoder, ServedModel(None)], BODY
    )
    found = scores.rank_window(QUERIES, 100)
    assert list(scores.pools) == [served.model.encoder_id]
    assert len(scores.pools[served.model.encoder_id]) == len({d for one in found.values() for d in one.documents})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": {"match_all": {}}, "sort": ["tag"]}, "sorts by tag"),
        ({"query": {"match": {"text": "{{query}}"}}, "size": 0}, "no hits"),
        ({"query": {"match": {"text": "{{query}}"}}, "knn": {"field": "v"}}, "knn"),
        ({"retriever": {"standard": {}}}, "retriever"),
    ],
)
def test_bodies_that_cannot_be_scored_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_template_body(body)


def test_a_body_is_restricted_by_a_filter_alone() -> None:
    body = {"query": {"match": {"text": "{{query}}"}}, "min_score": 0.1, "size": 7}
    assert among(body, ["a", "b"]) == {
        "query": {"bool": {"must": [body["query"]], "filter": [{"ids": {"values": ["a", "b"]}}]}},
        "min_score": 0.1,
        "size": 7,
    }
    assert body["query"] == {"match": {"text": "{{query}}"}}


def test_a_body_without_a_query_matches_all() -> None:
    assert among({}, ["a"])["query"]["bool"]["must"] == [{"match_all": {}}]
