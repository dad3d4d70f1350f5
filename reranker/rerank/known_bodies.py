"""Facts that depend only on a search body, computed once for the bodies that are searched again and again."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from reranker.engines.bodies import PLACE, Places, places_of
from reranker.engines.query_syntax import may_have_syntax
from reranker.rerank.calibration.bodies import ScoringParts

MAX_KNOWN_BODIES: Final = 256
"""Largest number of bodies that are kept; a service has a few, but the values of filters make more."""
MAX_KNOWN_BYTES: Final = 16_384
"""Length of the longest body that is kept, as `marshal` writes it."""


class BodyFacts(NamedTuple):
    """The facts of a body template that a search needs."""

    scoring: ScoringParts
    """The parts that determine scores."""
    places: Places | None
    """The places of the query text; None if there are none."""
    may_have_syntax: bool
    """Whether the words that a query asks for may differ from the query."""

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> BodyFacts:
        """Return the facts of a body template."""
        return cls(ScoringParts.of(template), places_of(template), may_have_syntax(template, PLACE))


class KnownBodies:
    """The facts of the bodies that were searched last. Threads may share an instance: equal bodies have equal facts."""

    def __init__(self) -> None:
        self._known: dict[bytes, BodyFacts] = {}

    def facts(self, template: Mapping[str, Any]) -> BodyFacts:
        """Return `BodyFacts.of` a body template."""
        try:
            # The bytes differ wherever two bodies do, also in types and in the order of keys. Later versions than 2
            # write equal bodies differently, depending on which of their texts are one object.
            key = marshal.dumps(template, 2)  # type: ignore[arg-type]
        except ValueError:  # it contains something else than JSON
            return BodyFacts.of(template)
        facts = self._known.get(key)
        if facts is None:
            facts = BodyFacts.of(template)
            if len(key) <= MAX_KNOWN_BYTES:
                if len(self._known) >= MAX_KNOWN_BODIES:
                    self._known.clear()
                self._known[key] = facts
        return facts
