"""Search bodies that no caller may send: they read other indexes, run scripts, keep contexts open or cost too much.

`OTHER` stands for the name of another index, `{{query}}` for the text of the search.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

OTHER: Final = "@other@"
TEXT: Final = {"match": {"text": "{{query}}"}}
SCRIPT: Final = {"source": "1"}


def _searched(clause: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a query clause at every place of a body that takes one."""
    filtered = {"bool": {"must": [TEXT], "filter": [clause]}}
    return [
        {"query": {"bool": {"must": [TEXT, clause]}}},
        {"query": filtered},
        {"query": {"bool": {"must": TEXT, "must_not": clause}}},
        {"query": {"function_score": {"query": TEXT, "functions": [{"filter": clause, "weight": 2}]}}},
        {"query": {"nested": {"path": "a", "query": {"dis_max": {"queries": [TEXT, clause]}}}}},
        {"query": {"boosting": {"positive": TEXT, "negative": clause, "negative_boost": 0.5}}},
        {"query": {"bool": {"should": [TEXT, {"constant_score": {"filter": clause}}]}}},
        {"query": TEXT, "post_filter": clause},
        {"query": TEXT, "rescore": {"window_size": 10, "query": {"rescore_query": clause}}},
        {"query": TEXT, "aggs": {"a": {"filter": clause}}},
        {"query": TEXT, "aggs": {"a": {"filters": {"filters": {"b": clause}}}}},
        {"query": TEXT, "aggs": {"a": {"terms": {"field": "tag"}, "aggs": {"b": {"filters": {"filters": [clause]}}}}}},
        {"query": TEXT, "highlight": {"fields": {"text": {"highlight_query": clause}}}},
        {
            "query": TEXT,
            "collapse": {
                "field": "tag",
                "inner_hits": {"name": "x", "highlight": {"highlight_query": clause, "fields": {"text": {}}}},
            },
        },
        {"query": TEXT, "sort": [{"tag": {"order": "asc", "nested": {"path": "a", "filter": clause}}}]},
        {"query": TEXT, "knn": {"field": "v", "query_vector": [1.0], "k": 1, "num_candidates": 1, "filter": clause}},
        {"retriever": {"standard": {"query": TEXT, "filter": clause}}},
        {"retriever": {"rrf": {"retrievers": [{"standard": {"query": filtered}}]}}},
    ]


LOOKUPS: Final[tuple[dict[str, Any], ...]] = (
    {"terms": {"tag": {"index": OTHER, "id": "1", "path": "secret"}}},
    {"terms": {"tag": {"index": OTHER, "path": "secret", "query": {"match_all": {}}}}},
    {"terms": {"tag": {"index": [OTHER], "id": "1", "path": "secret"}}},
    {"terms": {"tag": {"id": "1", "path": "secret"}}},
    {"more_like_this": {"fields": ["text"], "like": [{"_index": OTHER, "_id": "1"}], "min_term_freq": 1}},
    {"more_like_this": {"fields": ["text"], "like": {"_index": OTHER, "_id": "1"}, "min_term_freq": 1}},
    {"more_like_this": {"fields": ["text"], "like": "x", "unlike": [{"_index": OTHER, "_id": "1"}]}},
    {"geo_shape": {"place": {"indexed_shape": {"index": OTHER, "id": "1", "path": "shape"}}}},
    {"geo_shape": {"place": {"indexed_shape": {"id": "1", "path": "shape"}}}},
    {"shape": {"place": {"indexed_shape": {"index": OTHER, "id": "1"}}}},
    {"percolate": {"field": "query", "index": OTHER, "id": "1"}},
    {"percolate": {"field": "query", "document": {"text": "x"}}},
    {"pinned": {"docs": [{"_index": OTHER, "_id": "1"}], "organic": TEXT}},
)
SCRIPTED: Final[tuple[dict[str, Any], ...]] = (
    {"script": {"script": SCRIPT}},
    {"script_score": {"query": TEXT, "script": SCRIPT}},
    {"function_score": {"query": TEXT, "script_score": {"script": SCRIPT}}},
    {"function_score": {"query": TEXT, "functions": [{"script_score": {"script": SCRIPT}}]}},
    {"terms_set": {"tag": {"terms": ["a"], "minimum_should_match_script": SCRIPT}}},
    {"intervals": {"text": {"match": {"query": "a", "filter": {"script": SCRIPT}}}}},
    {"wrapper": {"query": "eyJtYXRjaF9hbGwiOnt9fQ=="}},
    {"template": {"source": {"match_all": {}}}},
    {"rule": {"organic": TEXT, "ruleset_ids": ["a"], "match_criteria": {}}},
    {"agentic": {"query_text": "a"}},
)
WHOLE: Final[tuple[dict[str, Any], ...]] = (
    {
        "runtime_mappings": {
            "x": {
                "type": "lookup",
                "target_index": OTHER,
                "input_field": "tag",
                "target_field": "tag",
                "fetch_fields": ["secret"],
            }
        },
        "fields": ["x"],
    },
    {"runtime_mappings": {"x": {"type": "long", "script": {"source": "emit(1)"}}}, "fields": ["x"]},
    {"derived": {"x": {"type": "text", "script": {"source": "emit('a')"}}}},
    {"script_fields": {"x": {"script": SCRIPT}}},
    {"sort": [{"_script": {"type": "number", "script": SCRIPT}}]},
    {"sort": {"_script": {"type": "number", "script": SCRIPT}}},
    {
        "aggs": {
            "a": {
                "scripted_metric": {
                    "init_script": "state.x = 1",
                    "map_script": "1",
                    "combine_script": "1",
                    "reduce_script": "1",
                }
            }
        }
    },
    {"aggs": {"a": {"terms": {"script": SCRIPT}}}},
    {"aggs": {"a": {"avg": {"field": "n", "script": SCRIPT}}}},
    {
        "aggs": {
            "a": {"terms": {"field": "tag"}, "aggs": {"b": {"bucket_script": {"buckets_path": "x", "script": "1"}}}}
        }
    },
    {
        "aggs": {
            "a": {"terms": {"field": "tag"}, "aggs": {"b": {"bucket_selector": {"buckets_path": {}, "script": "1"}}}}
        }
    },
    {
        "aggs": {
            "a": {
                "histogram": {"field": "n", "interval": 1},
                "aggs": {"b": {"moving_fn": {"buckets_path": "x", "window": 2, "script": "1"}}},
            }
        }
    },
    {"aggs": {"a": {"weighted_avg": {"value": {"script": SCRIPT}, "weight": {"field": "n"}}}}},
    {"aggs": {"a": {"composite": {"sources": [{"x": {"terms": {"script": SCRIPT}}}]}}}},
    {"aggs": {"a": {"top_hits": {"script_fields": {"x": {"script": SCRIPT}}}}}},
    {"aggs": {"a": {"top_hits": {"sort": [{"_script": {"type": "number", "script": SCRIPT}}]}}}},
    {"aggs": {"a": {"significant_terms": {"field": "tag", "script_heuristic": {"script": SCRIPT}}}}},
    {"aggs": {"a": {"inference": {"model_id": "a", "buckets_path": {}}}}},
    {"collapse": {"field": "tag", "inner_hits": {"name": "x", "script_fields": {"x": {"script": SCRIPT}}}}},
    {"suggest": {"a": {"text": "b", "phrase": {"field": "text", "collate": {"query": {"source": {}}}}}}},
    {"pit": {"id": "abc", "keep_alive": "1m"}},
    {"slice": {"id": 0, "max": 2}},
    {"scroll": "1m"},
    {"search_pipeline": "a"},
    {"search_pipeline": {"request_processors": []}},
    {"ext": {"other": {}}},
    {"ext": {"generative_qa_parameters": {"llm_model": "x"}}},
    {"indices_boost": [{OTHER: 2}]},
    {"stats": ["a"]},
    {"profile": True},
    {"rank": {"rrf": {}}},
    {"sub_searches": [{"query": TEXT}]},
    {"template": {}},
    {"point_in_time": {}},
    {"from_other_version": 1},
    {
        "retriever": {
            "text_similarity_reranker": {
                "retriever": {"standard": {"query": TEXT}},
                "field": "text",
                "inference_text": "a",
            }
        }
    },
    {"retriever": {"rule": {"retriever": {"standard": {"query": TEXT}}, "ruleset_ids": ["a"]}}},
    {
        "knn": {
            "field": "v",
            "k": 1,
            "num_candidates": 1,
            "query_vector_builder": {"lookup": {"id": "1", "index": OTHER, "path": "v"}},
        }
    },
)
COSTLY: Final[tuple[dict[str, Any], ...]] = (
    {"size": 2147483648},
    {"size": 10_001},
    {"size": -1},
    {"size": "10"},
    {"from": 9_995, "size": 10},
    {"query": {"match": {"text": {"query": "{{query}}", "boost": 3e38}}}},
    {"query": {"bool": {"must": [TEXT], "should": [{"term": {"tag": "a"}}] * 1025}}},
    {"query": {"intervals": {"text": {"any_of": {"intervals": [{"match": {"query": "a"}}] * 1025}}}}},
    {"query": {"regexp": {"text": {"value": "a", "max_determinized_states": 10**9}}}},
    {"aggs": {"a": {"terms": {"field": "tag", "size": 10_000}, "aggs": {"b": {"terms": {"field": "n", "size": 10}}}}}},
    {"aggs": {"a": {"terms": {"field": "tag", "size": 2**31 - 1}}}},
    {"aggs": {str(n): {"max": {"field": "n"}} for n in range(201)}},
    {"aggs": {"a": {"percentiles": {"field": "n", "tdigest": {"compression": 1e9}}}}},
    {"aggs": {"a": {"top_hits": {"size": 10_000}}}},
    {"aggs": {"a": {"composite": {"size": 10_000, "sources": []}, "aggs": {"b": {"top_hits": {"size": 100}}}}}},
    {"collapse": {"field": "tag", "inner_hits": {"name": "x", "size": 10_000}}},
    {"collapse": {"field": "tag", "max_concurrent_group_searches": 1000}},
    {"rescore": {"window_size": 10**6, "query": {"rescore_query": TEXT}}},
    {"timeout": "10d"},
    {"timeout": -1},
    {"highlight": {"fields": {"text": {"number_of_fragments": 10**6}}}},
    {"suggest": {"a": {"text": "b", "term": {"field": "text", "size": 10**6}}}},
    {"terminate_after": 2**40},
    {"query": {"function_score": {"query": TEXT, "weight": 1e38}}},
    {"knn": {"field": "v", "query_vector": [1.0], "k": 10**6, "num_candidates": 10**6}},
)


def hostile_bodies(other: str = "users") -> Iterator[dict[str, Any]]:
    """Yield every hostile body as a template of a search, ``other`` being the index that is not the service's."""
    bodies = [body for clause in (*LOOKUPS, *SCRIPTED) for body in _searched(clause)]
    bodies += [{"query": TEXT, **body} for body in (*WHOLE, *COSTLY)]
    for body in bodies:
        yield json.loads(json.dumps(body).replace(OTHER, other))
