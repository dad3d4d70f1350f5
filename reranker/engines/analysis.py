"""The definition of an analysis chain in an engine: what a model with an ``engine:`` analyzer depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reranker.engines.language import mapped_leaves
from reranker.engines.protocol import Engine, IndexInfo
from reranker.errors import IndexMissing

TEXT_TYPES = ("text", "match_only_text", "search_as_you_type")
"""Types of fields whose texts are analyzed."""
PARTS = ("analyzer", "tokenizer", "filter", "char_filter")
_PREFIX = "index.analysis."


def analyzer_definition(engine: Engine, index: str, field: str) -> dict[str, Any]:
    """Return the analyzer of a field, and the settings of its chain: setting → value.

    The settings are those of the analyzer and of the tokenizers and filters that it names; a built-in analyzer has
    none. If several indexes are behind the name, the first one answers for the field, as in `Engine.analyze`. Raises
    `IndexMissing` if the name does not exist, and `EngineError` if the engine does not answer.
    """
    names = engine.index_names(index)
    if not names:
        message = f"there is no index or alias {index!r} at {engine.spec}: check the name in engine:{index}/{field}"
        raise IndexMissing(message, status=404, error_type="index_not_found_exception")
    info = engine.index_info(names[0])
    analyzer = str(field_definition(info, field).get("analyzer", "default"))
    return {"analyzer": analyzer, **_chain(info.settings, analyzer)}


def field_definition(info: IndexInfo, field: str) -> Mapping[str, Any]:
    """Return the mapping of a field or of a multi-field (``title.stemmed``); empty if it has none."""
    leaves = dict(mapped_leaves(info.properties))
    if field in leaves:
        return leaves[field]
    parent, _, name = field.rpartition(".")
    found: Mapping[str, Any] = (leaves.get(parent, {}).get("fields") or {}).get(name, {})
    return found


def _chain(settings: Mapping[str, Any], analyzer: str) -> dict[str, Any]:
    """Return the settings of an analyzer and of what it names, sorted by name."""
    chain = dict(_settings_of(settings, "analyzer", analyzer))
    values = [str(value) for value in chain.values()]  # a name, or a list of names as text
    for part in PARTS[1:]:
        start = f"{_PREFIX}{part}."
        for name in {key.removeprefix(start).partition(".")[0] for key in settings if key.startswith(start)}:
            if any(name == value or repr(name) in value for value in values):
                chain |= _settings_of(settings, part, name)
    return dict(sorted(chain.items()))


def _settings_of(settings: Mapping[str, Any], part: str, name: str) -> Iterator[tuple[str, Any]]:
    prefix = f"{_PREFIX}{part}.{name}."
    return ((key, value) for key, value in settings.items() if key.startswith(prefix))


def changes_of(stored: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Return the differences of two definitions, ``NAME was A, is B`` for each; "" if there are none."""
    keys = sorted(name for name in {*stored, *present} if stored.get(name) != present.get(name))
    return "; ".join(f"{name} was {stored.get(name)!r}, is {present.get(name)!r}" for name in keys)
