"""Signals: numbers of a document that affect its score, such as popularity, recency, price, rating, or stock.

A signal adds w s(x) to the score of a document, w >= 0. x is the document's number in one field. It is read from doc
values, so that no ``_source`` is needed. Of several values the smallest is used. A date is converted to milliseconds
since 1970, false and true to 0 and 1.

s rises with x from 0 to 1 (or falls, where lower is better). It is the share of the candidates seen during fitting
whose number is smaller, with equal ones counted half, interpolated linearly between `N_KNOTS` quantiles. So unit, sign
and scale of the numbers do not matter. A number beyond all that were seen (an outlier, a later date) gets the last
value. A document without a finite number gets 1/2, the mean of s, so that the signal neither raises nor lowers it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from reranker.arrays import Float64
from reranker.engines.language import mapped_leaves
from reranker.engines.protocol import Engine
from reranker.errors import ConfigError, InputError
from reranker.records import Hit

N_KNOTS: Final = 32
MAX_SIGNALS: Final = 8
NEUTRAL: Final = 0.5
"""s of a document without a number."""
_LARGEST: Final = 1e300
"""Knots are clipped to this magnitude, so that the difference of two is finite."""
_KINDS: Final = {
    **dict.fromkeys(("long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float"), "number"),
    "date": "date",
    "date_nanos": "date",
    "boolean": "boolean",
}
"""Mapping type → kind of number."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A numeric field of documents with its contribution to the score.

    Raises `ConfigError` if ``weight`` is negative or not finite, or the knots are invalid.
    """

    field: str
    """Name of the document's field."""
    kind: str = "number"
    """``number``, ``date``, or ``boolean``."""
    lower: bool = False
    """True if a lower number is better."""
    weight: float = 0.0
    """w, at least 0."""
    knots: tuple[tuple[float, float], ...] = ()
    """Pairs (x, share of smaller numbers), both ascending."""

    def __post_init__(self) -> None:
        numbers, shares = [x for x, _ in self.knots], [share for _, share in self.knots]
        wrong = ""
        if self.kind not in _KINDS.values():
            wrong = f"kind {self.kind!r} is not number, date or boolean"
        elif not (math.isfinite(self.weight) and self.weight >= 0):
            wrong = f"weight {self.weight!r} is not a finite number of 0 or more"
        elif not (all(map(math.isfinite, numbers)) and all(a < b for a, b in pairwise(numbers))):
            wrong = "the numbers of its knots do not increase"
        elif not (all(0 <= s <= 1 for s in shares) and all(a <= b for a, b in pairwise(shares))):
            wrong = "the shares of its knots do not increase from 0 to 1"
        if wrong:
            raise ConfigError(f"signal {self.field!r}: {wrong}; run `ssi calibrate --signals` again")

    @classmethod
    def from_json(cls, entry: Any) -> Signal:
        """Return the signal from the output of `to_json`. Raises `ConfigError` for another value."""
        try:
            field, kind, lower, weight = (entry[name] for name in ("field", "kind", "lower", "weight"))
            knots = tuple((float(x), float(share)) for x, share in entry["knots"])
            if not (isinstance(field, str) and field and isinstance(kind, str) and isinstance(lower, bool) and knots):
                raise TypeError
            return cls(field, kind, lower, float(weight), knots)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise ConfigError(
                f"signal {entry!r:.80} of the release is invalid: run `ssi calibrate --signals` again"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """Return the values that a release stores."""
        head = {"field": self.field, "kind": self.kind, "lower": self.lower, "weight": self.weight}
        return {**head, "knots": [list(knot) for knot in self.knots]}

    def request(self) -> dict[str, str]:
        """Return the entry of ``docvalue_fields`` that requests the number."""
        return {"field": self.field, **({"format": "epoch_millis"} if self.kind == "date" else {})}

    def numbers(self, hits: Sequence[Hit]) -> Float64:
        """Return x of each hit that was requested with `request`, (n,) float64; NaN if it has none."""
        return np.array([_smallest(hit.fields.get(self.field)) for hit in hits], dtype=np.float64)

    def with_knots(self, numbers: Float64) -> Signal:
        """Return the signal with knots fitted to the candidates' numbers, (n,) float64, NaN for none.

        Raises `InputError` if all numbers are missing.
        """
        known = np.sort(np.clip(numbers[np.isfinite(numbers)], -_LARGEST, _LARGEST))
        if not len(known):
            raise InputError(
                f"signal {self.field!r}: no candidate of these queries has a number in this field. Choose a field that "
                "documents have, or remove it from --signals"
            )
        levels = (np.arange(N_KNOTS) + 0.5) / N_KNOTS
        values = np.unique(np.quantile(known, levels, method="nearest"))
        below, not_above = (np.searchsorted(known, values, side=side) for side in ("left", "right"))
        shares = (below + not_above) / (2.0 * len(known))
        return replace(self, knots=tuple(zip(values.tolist(), shares.tolist(), strict=True)))

    def shares(self, numbers: Float64) -> Float64:
        """Return s of each number, (n,) float64."""
        x, share = np.array(self.knots).T
        with np.errstate(invalid="ignore"):
            values: Float64 = np.interp(numbers, x, 1.0 - share if self.lower else share)
        values[~np.isfinite(numbers)] = NEUTRAL
        return values

    def params(self) -> dict[str, Any]:
        """Return the parameters of the signal for the engine's script."""
        x, share = np.array(self.knots).T
        s = 1.0 - share if self.lower else share
        head = {"field": self.field, "kind": self.kind, "weight": self.weight, "neutral": NEUTRAL}
        return {**head, "x": x.tolist(), "s": s.tolist()}


def _smallest(values: Any) -> float:
    found = []
    for value in values or ():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number):
            found.append(number)
    return min(found, default=math.nan)


def added(signals: Sequence[Signal], hits: Sequence[Hit]) -> Float64:
    """Return the contribution of all signals to each hit's score, the sum over k of w_k s_k(x), (n,) float64."""
    total = np.zeros(len(hits))
    for signal in signals:
        total += signal.weight * signal.shares(signal.numbers(hits))
    return total


def parse_signals(text: str) -> tuple[Signal, ...]:
    """Return the signals in ``FIELD[:lower],...``, without kind, weight and knots.

    Raises `ConfigError` for invalid text.
    """
    signals = []
    for part in text.split(","):
        field, _, direction = part.strip().partition(":")
        if not field or direction not in ("", "higher", "lower"):
            raise ConfigError(
                f"--signals {text!r:.200}: {part!r:.80} is invalid. Write fields separated by commas: FIELD if a "
                "higher number (a later date) is better, FIELD:lower if a lower one is"
            )
        signals.append(Signal(field, lower=direction == "lower"))
    names = [signal.field for signal in signals]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--signals names {repeated[0]!r} twice: name each field once")
    if len(names) > MAX_SIGNALS:
        raise ConfigError(f"--signals names {len(names)} fields: at most {MAX_SIGNALS} can be fitted together")
    return tuple(signals)


def typed(signals: Sequence[Signal], engine: Engine, index: str) -> tuple[Signal, ...]:
    """Return the signals with the kinds of their fields, as mapped in all indexes behind a name.

    Raises
    ------
    InputError
        If no index has the field, its type is not numeric, date or boolean, it has no doc values, or it has different
        kinds in different indexes.
    EngineError
        If the engine does not answer.
    """
    mapped: dict[str, dict[str, str]] = {}  # field → type → an index
    for name in engine.index_names(index):
        for path, definition in mapped_leaves(engine.index_info(name).properties):
            kind = str(definition.get("type")) if definition.get("doc_values", True) else "one without doc values"
            mapped.setdefault(path, {})[kind] = name
    usable = [path for path, types in mapped.items() if all(kind in _KINDS for kind in types)]
    hint = f"name a numeric, date or boolean field; here: {', '.join(sorted(usable)[:20]) or 'none'}"
    found = []
    for signal in signals:
        types = mapped.get(signal.field)
        if not types:
            raise InputError(f"signal {signal.field!r}: index {index!r} has no such field; {hint}")
        if wrong := [kind for kind in types if kind not in _KINDS]:
            place = types[wrong[0]]
            raise InputError(f"signal {signal.field!r} is of type {wrong[0]} in index {place!r}; {hint}")
        kinds = {_KINDS[kind] for kind in types}
        if len(kinds) > 1:
            raise InputError(
                f"signal {signal.field!r} is a {' and a '.join(sorted(kinds))} in the indexes behind {index!r}: give "
                "it one type in all of them"
            )
        found.append(replace(signal, kind=kinds.pop()))
    return tuple(found)
