"""Configuration file: TOML, with one table for each command, whose keys are the options of the command.

An option has the same name on the command line (``ssi search --window 100``), in the environment
(``SSI_SEARCH_WINDOW=100``) and in the file ::

    [default]             # engine, index, model, body and id_field of every command
    engine = "elasticsearch:http://localhost:9200"
    [engine]              # how to reach the engine; see `reranker.engines.EngineSettings`
    user = "search"
    [search]              # any option of `ssi search`
    window = 100

The command line has precedence over the environment, the environment over the file, and the table of a command over
``[default]``. Paths in the file are relative to its folder. An invalid key is an error that lists the valid ones, so
that a misspelt key is not silently ignored.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from reranker.errors import ConfigError

T = TypeVar("T")

RouteName = Literal["beside", "fetch", "impacts"]
"""Where scores are computed: from a local store, from vectors in the engine's response, or when documents are
written: with ``impacts``, words with weights that the engine's own queries add up."""
ROUTES: tuple[RouteName, ...] = get_args(RouteName)
DEFAULT_ROUTE: RouteName = "fetch"
ImpactMode = Literal["find", "reorder"]
"""Effect of impacts in a search. ``find``: documents that only the impacts find are hits too; ``reorder``: the hits
stay those of the body."""
IMPACT_MODES: tuple[ImpactMode, ...] = get_args(ImpactMode)
IMPACT_BOOST = 8.0
"""Weight of impacts next to the body's own score. They contain a tuned lexical score already, so that they decide the
order. Chosen on validation queries of nfcorpus (`benchmarks/served.py`)."""
SIMULATED_IMPRESSIONS = 5_000
MAX_KEYWORDS = 1000
"""Maximum K of ``keywords:K``."""


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file.

    Raises `ConfigError` if the file cannot be read, is not TOML, or has a key outside of a table.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"configuration file {str(path)!r} cannot be read: {error.strerror}", path=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {str(path)!r} is not TOML: {error}", path=str(path)) from error
    for key, value in tables.items():
        if not isinstance(value, dict):
            raise ConfigError(
                f"configuration file {str(path)!r}: the key {key!r} is outside of a table; "
                f"put it into the table of a command such as [search], or into [engine]",
                key=key,
            )
    return tables


def reject_unknown(keys: Collection[str], legal: Collection[str], where: str) -> None:
    """Raise `ConfigError` for the first key (in sorted order) that is not in ``legal``. The message lists ``legal``."""
    for key in sorted(set(keys) - set(legal)):
        raise ConfigError(f"{where}: unknown key {key!r}; legal keys: {', '.join(sorted(legal))}", key=key)


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return an instance of the dataclass ``cls`` with the values of a table; absent keys have their defaults.

    Raises `ConfigError` for an unknown key, or a value that the class refuses.
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a dataclass")
    reject_unknown(values.keys(), [f.name for f in dataclasses.fields(cls)], where)
    try:
        return cls(**dict(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def check_ranges(settings: Any, /, **ranges: str) -> None:
    """Raise `ConfigError` for the first field of a dataclass that is outside of its range, such as ``[0, 1)``.

    A round bracket excludes the end, and ``inf`` means no limit. None is accepted for a field whose type allows it. A
    field of type int must be an integer.
    """
    for name, interval in ranges.items():
        value, kinds = getattr(settings, name), str(settings.__dataclass_fields__[name].type).split(" | ")
        if value is None and "None" in kinds:
            continue
        low, high = map(float, interval[1:-1].split(","))
        whole = "int" in kinds
        is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
        above = is_number and (value > low or (value == low and interval[0] == "["))
        if not (above and (value < high or (value == high and interval[-1] == "]"))):
            rule = f"{'of at least' if interval[0] == '[' else 'above'} {low:g}"
            if high < math.inf:
                rule += f" and {'at most' if interval[-1] == ']' else 'below'} {high:g}"
            kind = "whole" if whole else "finite"
            raise ConfigError(f"{name} is {value!r}: it must be a {kind} number {rule}", key=name)


def default_of(settings: type, name: str) -> Any:
    """Return the default of a dataclass's field; None if it has none, or only a default factory."""
    default = settings.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return None if default is dataclasses.MISSING else default


def parse_keywords(text: str, others: tuple[str, ...], most: int = MAX_KEYWORDS) -> int | None:
    """Return K of ``keywords:K``, from 1 to ``most``, or None for one of ``others``. Raises `ConfigError` otherwise."""
    if text in others:
        return None
    kind, _, number = text.partition(":")
    if kind == "keywords" and number.isdecimal() and len(number) <= len(str(most)) and 1 <= int(number) <= most:
        return int(number)
    message = f"queries is {text!r}: choose {', '.join(others)} or keywords:K with K from 1 to {most}"
    raise ConfigError(message, value=text)


def milliseconds(name: str, text: str | None) -> int | None:
    """Return the time of an option as milliseconds since 1970. A time without a zone is UTC."""
    if text is None:
        return None
    try:
        return round(instant(text).timestamp() * 1000)
    except ValueError as error:
        example = "2026-06-01 or 2026-06-01T12:00:00+02:00"
        raise ConfigError(f"--{name} {text!r} is not a time: write {example}") from error


def instant(text: str) -> datetime:
    """Parse an ISO 8601 time; without a zone, it is UTC. Raises `ValueError` for other texts."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
