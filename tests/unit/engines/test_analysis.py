"""The definition of an analyzer in an engine, which a model stores and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reranker.engines.analysis import analyzer_definition, changes_of
from reranker.engines.protocol import Engine, IndexInfo
from reranker.errors import IndexMissing
from reranker.models.model_folder import changed_analyzer, load_model, save_model
from reranker.text.analyzers import make_analyzer, parse_analyzer
from tests.engines.memory import memory_engine
from tests.served import model_of, random_documents

SETTINGS = {
    "index.analysis.analyzer.mine.type": "custom",
    "index.analysis.analyzer.mine.tokenizer": "standard",
    "index.analysis.analyzer.mine.filter": "['lowercase', 'stems']",
    "index.analysis.filter.stems.type": "stemmer",
    "index.analysis.filter.stems.language": "english",
    "index.analysis.filter.stem.type": "a filter of another analyzer",
    "index.analysis.analyzer.other.type": "custom",
    "index.number_of_shards": "1",
}
PROPERTIES: dict[str, Any] = {
    "title": {"type": "text", "analyzer": "mine", "fields": {"plain": {"type": "text", "analyzer": "simple"}}},
    "maker": {"properties": {"name": {"type": "text"}}},
}


def engine_with(settings: dict[str, str], properties: dict[str, Any] = PROPERTIES) -> Engine:
    engine = memory_engine()
    engine.create_index("shop-1", {})
    engine.swap_alias("shop", "shop-1")
    engine.index_info = lambda index: IndexInfo(index, properties, settings=settings)  # type: ignore[method-assign]
    return engine


def test_a_definition_has_the_chain_of_its_field_only() -> None:
    engine = engine_with(SETTINGS)
    found = analyzer_definition(engine, "shop", "title")
    assert found.pop("analyzer") == "mine"
    unrelated = ("index.analysis.filter.stem.type", "index.analysis.analyzer.other.type", "index.number_of_shards")
    assert found == {name: value for name, value in SETTINGS.items() if name not in unrelated}
    assert analyzer_definition(engine, "shop", "title.plain") == {"analyzer": "simple"}
    assert analyzer_definition(engine, "shop", "maker.name") == {"analyzer": "default"}
    with pytest.raises(IndexMissing, match="check the name in engine:gone/title"):
        analyzer_definition(engine, "gone", "title")


def test_differences_name_the_setting_and_both_values() -> None:
    assert changes_of({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == ""
    assert changes_of({"a": "1", "b": "2"}, {"b": "3"}) == "a was '1', is None; b was '2', is '3'"


def test_a_model_keeps_the_definition_and_notices_a_change(tmp_path: Path) -> None:
    documents = random_documents(5)
    model = model_of(documents)
    before = engine_with(SETTINGS)
    config = parse_analyzer("engine:shop/title")
    definition = analyzer_definition(before, "shop", "title")
    model.encoder.__dict__["analyzer"] = make_analyzer(config, lambda texts: [[] for _ in texts], definition)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model", before)
    assert changed_analyzer(loaded, before) == ""
    changed = engine_with({**SETTINGS, "index.analysis.filter.stems.language": "german"})
    said = changed_analyzer(loaded, changed)
    assert "engine:shop/title" in said and "stems.language was 'english', is 'german'" in said and "train again" in said
    assert changed_analyzer(model_of(documents), changed) == ""
