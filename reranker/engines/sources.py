"""Source filtering as the engines do it: which parts of a stored document come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from re import Pattern, compile
from typing import Any

from reranker.engines.wire import Json
from reranker.errors import EngineRejected


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed ``_source`` option: patterns to keep (empty = all) and to drop; ``nothing`` for ``_source: false``."""

    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    nothing: bool = False

    @classmethod
    def parse(cls, option: Json) -> Selection:
        """Return the selection of a ``_source`` option: a bool, a pattern, a list, or includes and excludes.

        Raises
        ------
        EngineRejected
            Anything else.
        """
        if option is None or isinstance(option, bool):
            return cls(nothing=option is False)
        if isinstance(option, str):
            return cls(includes=(option,))
        if isinstance(option, Mapping) and set(option) <= {"include", "includes", "exclude", "excludes"}:
            includes = option.get("includes", option.get("include", ()))
            excludes = option.get("excludes", option.get("exclude", ()))
            return cls(includes=_patterns(includes), excludes=_patterns(excludes))
        if isinstance(option, Sequence):
            return cls(includes=_patterns(option))
        raise EngineRejected(f"_source is {option!r}; it takes true, false, field paths, or includes and excludes")

    def apply(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the selected part; the source itself where all of it is."""
        if self.nothing:
            return {}
        if not self.includes and not self.excludes:
            return source
        return _filter(source, "", self, not self.includes)


def _patterns(value: Json) -> tuple[str, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(item, str) for item in values):
        raise EngineRejected(f"_source names {values!r}; field paths are strings")
    return values


@lru_cache(maxsize=1024)
def _pattern(path: str) -> Pattern[str]:
    return compile(translate(path.replace("[", "[[]").replace("?", "[?]")))


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == item or ("*" in item and _pattern(item).match(path) is not None) for item in patterns)


def _filter(value: Mapping[str, Any], prefix: str, selection: Selection, kept: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, child in value.items():
        path = f"{prefix}{name}"
        if _matches(path, selection.excludes):
            continue
        inside = kept or _matches(path, selection.includes)
        picked = _pick(child, path, selection, inside)
        if picked is not _ABSENT:
            result[name] = picked
    return result


_ABSENT = object()


def _pick(child: Json, path: str, selection: Selection, inside: bool) -> Json:
    if isinstance(child, Mapping):
        part = _filter(child, f"{path}.", selection, inside)
        return part if part or inside else _ABSENT
    if isinstance(child, list) and any(isinstance(item, Mapping) for item in child):
        parts = [_pick(item, path, selection, inside) for item in child]
        kept = [part for part in parts if part is not _ABSENT]
        return kept if kept or inside else _ABSENT
    return child if inside else _ABSENT


def values_at(source: Mapping[str, Any], path: str) -> list[Any]:
    """Return all values under a dotted path, arrays flattened; a key that itself has dots is found too."""
    found: list[Any] = []
    _collect(source, path, found)
    return found


def _collect(value: Json, path: str, found: list[Any]) -> None:
    if isinstance(value, list):
        for item in value:
            _collect(item, path, found)
    elif not path:
        if value is not None:
            found.append(value)
    elif isinstance(value, Mapping):
        if path in value:
            _collect(value[path], "", found)
        cut = path.find(".")
        while cut > 0:
            if path[:cut] in value:
                _collect(value[path[:cut]], path[cut + 1 :], found)
            cut = path.find(".", cut + 1)
