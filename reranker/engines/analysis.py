"""The definition of an analysis chain in an engine: what a model with an ``engine:`` analyzer depends on."""

from __future__ import annotations

import re
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


_SIMPLE_ANALYZERS = frozenset(
    "default standard simple whitespace stop keyword pattern fingerprint arabic armenian basque bengali brazilian "
    "bulgarian catalan cjk czech danish dutch english estonian finnish french galician german greek hindi hungarian "
    "indonesian irish italian latvian lithuanian norwegian persian portuguese romanian russian serbian sorani spanish "
    "swedish thai turkish".split()
)
"""Built-in analyzers that give one token a position."""
_SIMPLE_PARTS = frozenset(
    "custom standard whitespace letter lowercase uppercase classic uax_url_email pattern keyword thai icu_tokenizer "
    "asciifolding stop stemmer snowball porter_stem kstem elision trim apostrophe length unique truncate "
    "keyword_marker stemmer_override icu_folding icu_normalizer decimal_digit reverse remove_duplicates limit "
    "html_strip mapping "
    "pattern_replace arabic_normalization arabic_stem bengali_normalization brazilian_stem czech_stem dutch_stem "
    "french_stem german_normalization german_stem hindi_normalization indic_normalization persian_normalization "
    "russian_stem scandinavian_folding scandinavian_normalization serbian_normalization sorani_normalization "
    "cjk_width cjk_bigram".split()
)
"""Types, and names of built-in ones, of tokenizers and filters that add no token at the position of another."""
_ADDING_OPTIONS = ("preserve_original", "output_unigrams")
"""Options with which some of these add tokens."""


def stacking_part(definition: Mapping[str, Any]) -> str:
    """Return the part of an analysis chain that may put several tokens at one position; "" if none does.

    Synonyms, shingles and the like do: an engine's ``match`` then treats the tokens of a position as one word.
    ``definition`` is an `analyzer_definition`. A part that is not known is taken to be one that does.
    """
    analyzer = str(definition["analyzer"])
    chain = {name.removeprefix(_PREFIX): value for name, value in definition.items() if name != "analyzer"}
    if not chain:
        return "" if analyzer in _SIMPLE_ANALYZERS else analyzer
    defined = {tuple(name.split(".")[:2]) for name in chain}
    own_type = str(chain.get(f"analyzer.{analyzer}.type", "custom"))
    if own_type != "custom" and own_type not in _SIMPLE_ANALYZERS:
        return analyzer
    for name, value in sorted(chain.items()):
        part, owner, option = name.split(".", 2)
        if option in _ADDING_OPTIONS and str(value).lower() == "true":
            return owner
        if option == "type" and part != "analyzer" and str(value) not in _SIMPLE_PARTS:
            return owner
        if part == "analyzer" and option.split(".")[0] in PARTS[1:]:
            for named in _names_in(value):
                if (option.split(".")[0], named) not in defined and named not in _SIMPLE_PARTS:
                    return named
    return ""


def _names_in(value: Any) -> list[str]:
    """Return the names in a setting: a name, a list, or a list as text."""
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return [name for name in re.split(r"[\[\],'\"\s]+", str(value)) if name]


def changes_of(stored: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Return the differences of two definitions, ``NAME was A, is B`` for each; "" if there are none."""
    keys = sorted(name for name in {*stored, *present} if stored.get(name) != present.get(name))
    return "; ".join(f"{name} was {stored.get(name)!r}, is {present.get(name)!r}" for name in keys)
