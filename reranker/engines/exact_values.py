"""The one spelling of a value by which equal values of a field type are found."""

from __future__ import annotations

import math

from reranker.engines.wire import Json

NUMBERS = frozenset({"long", "integer", "short", "byte", "double", "float", "half_float"})
WHOLE_NUMBERS = {"long": 63, "integer": 31, "short": 15, "byte": 7}


def exact_value(kind: str, item: Json) -> str:
    """Return the one spelling by which equal values of a type are found.

    Raises
    ------
    ValueError
        A value the type does not take.
    """
    if kind == "boolean":
        return _boolean(item)
    if kind in NUMBERS:
        return _number(kind, item)
    if isinstance(item, bool):
        return "true" if item else "false"
    return item if isinstance(item, str) else repr(item)


def _boolean(item: Json) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if item in ("true", "false", ""):
        return item or "false"
    raise ValueError(item)


def _number(kind: str, item: Json) -> str:
    if isinstance(item, bool):
        raise ValueError(item)
    try:
        number = float(item)
    except OverflowError:
        raise ValueError(item) from None
    if not math.isfinite(number):
        raise ValueError(item)
    if kind not in WHOLE_NUMBERS:
        return repr(number)
    whole = item if isinstance(item, int) else int(number)
    if not -(2 ** WHOLE_NUMBERS[kind]) <= whole < 2 ** WHOLE_NUMBERS[kind]:
        raise ValueError(item)
    return str(whole)
