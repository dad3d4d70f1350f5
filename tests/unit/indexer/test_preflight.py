"""Every reason to leave an index alone, and the notes that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from indexer.build import index_mapping, rebuilt
from indexer.encoding import VersionEncoder
from indexer.preflight import (
    Plan,
    disk_reasons,
    mapping_notes,
    mapping_reasons,
    n_fields,
    preflight,
    version_reasons,
)
from indexer.renewal import changed_since
from reranker.engines import open_engine
from reranker.engines.protocol import DiskUsage, IndexInfo
from reranker.errors import EngineRejected, PreflightRefused
from tests.engines.memory import memory_engine
from tests.engines.scripted import ScriptedServer, json_answer
from tests.served import model_of, random_documents

NEW = {"ssi_0123456789ab_src": {"type": "keyword"}, "ssi_0123456789ab_vec": {"type": "binary"}}


def info(mapping: Mapping[str, Any] | None = None, settings: Mapping[str, str] | None = None, **more: Any) -> IndexInfo:
    mapping = {"properties": {"text": {"type": "text"}}, **(mapping or {})}
    return IndexInfo("shop-1", mapping["properties"], mapping, settings or {}, **more)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (info({"_source": {"enabled": False}}), "_source is disabled"),
        (info({"_source": {"mode": "synthetic"}}), "synthetic"),
        (info(settings={"index.mapping.source.mode": "synthetic"}), "synthetic"),
        (info({"_source": {"excludes": ["big"]}}), "omits fields"),
        (info({"_source": {"includes": ["text"]}}), "omits fields"),
        (info(data_stream="logs"), "data stream 'logs'"),
        (info(settings={"index.blocks.write": "true"}), "index.blocks.write"),
        (info(settings={"index.blocks.read_only_allow_delete": "true"}), "read_only_allow_delete"),
        (info(settings={"index.mapping.total_fields.limit": "2"}), "raise index.mapping.total_fields.limit to 3"),
        (info({"properties": {"ssi_0123456789ab_src": {"type": "text"}}}), "exists as 'text'"),
    ],
)
def test_reasons(index: IndexInfo, words: str) -> None:
    reasons = mapping_reasons(index, NEW)
    assert any(words in reason for reason in reasons)
    assert all(":" in reason for reason in reasons)  # value and remedy


@pytest.mark.parametrize(
    "index",
    [
        info(),
        info({"dynamic": "strict"}),
        info({"_routing": {"required": True}}),
        info(settings={"index.default_pipeline": "tidy"}),
        info(settings={"index.mapping.total_fields.limit": "3"}),
        info({"_source": {"enabled": True}}, {"index.blocks.write": "false"}),
        info({"properties": {"text": {"type": "text"}, **NEW}}),
    ],
)
def test_no_reason(index: IndexInfo) -> None:
    assert mapping_reasons(index, NEW) == []


def test_notes() -> None:
    assert mapping_notes(info()) == []
    assert "strict" in mapping_notes(info({"dynamic": "strict"}))[0]
    assert "routing" in mapping_notes(info({"_routing": {"required": True}}))[0]
    assert "'tidy'" in mapping_notes(info(settings={"index.final_pipeline": "tidy"}))[0]
    assert mapping_notes(info(settings={"index.final_pipeline": "_none"})) == []


def test_disk() -> None:
    assert disk_reasons(DiskUsage(5, None, None), 10) == []
    assert disk_reasons(DiskUsage(30, 50, 100), 10) == []
    assert "free space" in disk_reasons(DiskUsage(30, 50, 100), 11)[0]


def test_a_version_above_the_writes_of_its_shard_came_from_outside() -> None:
    """An internal one may reach ``_seq_no + 1``: all writes of the shard were of this document."""
    with ScriptedServer("elasticsearch") as server:
        engine = open_engine(server.spec)
        page: dict[str, Any] = {}
        server.script("_search", *[lambda s, r: json_answer(200, page)] * 2)
        for version, n_reasons in ((7, 0), (8, 1)):
            hit = {"_index": "shop-1", "_id": "d1", "_score": 1.0, "_version": version, "_seq_no": 6}
            page["hits"] = {"total": {"value": 1, "relation": "eq"}, "hits": [hit]}
            assert len(version_reasons(engine, "shop-1")) == n_reasons
        engine.close()


def test_all_reasons_come_at_once() -> None:
    plan = Plan("shop", ("shop-1",), 3, 30, NEW, ("one: a", "two: b"))
    with pytest.raises(PreflightRefused) as caught:
        plan.check()
    assert caught.value.data["reasons"] == ("one: a", "two: b")
    assert "one: a" in str(caught.value)
    assert caught.value.exit_code == 7


def test_a_missing_index_is_told() -> None:
    engine = memory_engine()
    with pytest.raises(EngineRejected, match="ssi index"):
        preflight(engine, "nowhere", VersionEncoder(model_of(random_documents(3)).encoder))


def test_fields_are_counted_as_the_engines_do() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "author": {"properties": {"name": {"type": "text"}, "home": {"properties": {"city": {"type": "keyword"}}}}},
    }
    assert n_fields(properties) == 6


def test_mapping_of_a_new_index_nests_paths_and_guesses_nothing() -> None:
    mapping = index_mapping(["title", "author.name", "author.home.city", "title.sub"], NEW)
    assert mapping["date_detection"] is False
    assert mapping["properties"]["title"] == {"type": "text"}
    author = mapping["properties"]["author"]["properties"]
    assert author == {"name": {"type": "text"}, "home": {"properties": {"city": {"type": "text"}}}}
    assert set(NEW) <= set(mapping["properties"])


def test_a_rebuild_keeps_the_teams_mapping_and_drops_old_versions() -> None:
    old = info({"_meta": {"team": 1}, "properties": {"text": {"type": "text"}, **NEW}})
    mapping, _ = rebuilt(old, {"ssi_ffffffffffff_src": {"type": "keyword"}})
    assert mapping == {
        "_meta": {"team": 1},
        "properties": {"text": {"type": "text"}, "ssi_ffffffffffff_src": {"type": "keyword"}},
    }
    kept = {
        "index.number_of_shards": "2",
        "index.analysis.analyzer.a.type": "standard",
        "index.mapping.ignore_malformed": "true",
        "index.mapping.exclude_source_vectors": "false",
    }
    assert rebuilt(info(settings={"index.uuid": "x", **kept}), {})[1] == kept


def test_incremental_query_looks_back_and_takes_the_missing() -> None:
    query = changed_since("modified", 1767226200000, "ssi_x_src")  # 2026-01-01T00:10:00Z
    changed, undated, missing = query["bool"]["should"]
    assert changed["range"]["modified"]["gte"] == 1767225900000  # 2026-01-01T00:05:00Z
    assert undated == {"bool": {"must_not": [{"exists": {"field": "modified"}}]}}
    assert missing == {"bool": {"must_not": [{"exists": {"field": "ssi_x_src"}}]}}
