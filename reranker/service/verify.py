"""What a version must show before it may answer: that it scores what the index holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from reranker.engines.base import Engine
from reranker.engines.fields import field_name
from reranker.errors import EngineAuthError, EngineError, EngineUnavailable, GateRefused, InputError, RerankerError
from reranker.rerank import Reranker
from reranker.rerank.page import FallbackError
from reranker.service.serving import Serving
from reranker.service.settings import ServiceSettings

MAX_GOLDEN = 1000
MAX_GOLDEN_BYTES = 1_000_000
N_DRAWN = 5
"""Queries drawn from the model's vocabulary where no golden set is given."""
PATIENCE_MS = 30_000.0
MAX_ENCODED = 0.5
"""Share of candidates that may have to be encoded from their text: more, and the index is another version's."""


@dataclass(frozen=True, slots=True)
class GoldenQuery:
    """A query, and the id of a document that must be on its first page ("" for any)."""

    query: str
    expect: str = ""


def read_golden(path: Path) -> tuple[GoldenQuery, ...]:
    """Return the golden set of a file of JSON lines ``{"query": ..., "expect": "document id"}`` (``expect`` optional).

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no such object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the golden set {str(path)!r} cannot be read: {error.strerror}") from error
    lines = [line for line in content.splitlines() if line.strip()]
    if len(content) > MAX_GOLDEN_BYTES or not 1 <= len(lines) <= MAX_GOLDEN:
        raise InputError(f"the golden set {str(path)!r} has {len(lines)} lines; it has 1 to {MAX_GOLDEN}")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.json.decode(line, type=dict[str, str])
            found.append(GoldenQuery(entry["query"], entry.get("expect", "")))
        except (msgspec.MsgspecError, KeyError, RecursionError) as error:
            raise InputError(
                f'line {number} of the golden set {str(path)!r} is not {{"query": ..., "expect": ...}}'
            ) from error
    return tuple(found)


def drawn_queries(serving: Serving) -> tuple[GoldenQuery, ...]:
    """Return queries of one word each from the more frequent tenth of the model's words."""
    if serving.model is None:
        return ()
    words = serving.model.query_vocabulary.words
    reach = max(len(words) // 10, min(len(words), N_DRAWN))
    places = np.unique(np.linspace(0, reach - 1, N_DRAWN).astype(int)) if reach else ()
    return tuple(GoldenQuery(words[place]) for place in places)


class Verifier:
    """Checks a version against the index that it is to serve.

    Parameters
    ----------
    engine : Engine
    settings : ServiceSettings
    golden : sequence of GoldenQuery or None
        None draws some of the model's own words.
    """

    def __init__(self, engine: Engine, settings: ServiceSettings, golden: Sequence[GoldenQuery] | None = None) -> None:
        self._engine, self._settings, self._golden = engine, settings, golden

    def check(self, serving: Serving) -> None:
        """Return if the version may answer.

        Raises
        ------
        GateRefused
            With the reason.
        EngineUnavailable
            If the engine does not answer, so that nothing can be said.
        """
        try:
            serving.reranker.check()
        except EngineUnavailable:
            raise
        except RerankerError as error:
            raise GateRefused(f"the index does not fit this version: {error}") from error
        if self._settings.route == "fetch":
            self._check_fields(serving)
        queries = drawn_queries(serving) if self._golden is None else self._golden
        n_hits = sum(self._check_query(serving, one) for one in queries)
        if self._golden is not None and not n_hits:
            raise GateRefused("no query of the golden set finds a document")

    def _check_fields(self, serving: Serving) -> None:
        field = field_name(serving.encoder_id, "vec")
        try:
            names = self._engine.index_names(self._settings.index)
            without = [name for name in names if field not in self._engine.index_info(name).properties]
        except EngineAuthError:
            # A role that may search and not look at mappings: the golden queries show as much.
            return
        if without:
            raise GateRefused(
                f"index {without[0]!r} has no vectors of encoder {serving.encoder_id[:12]}: run `ssi revectorize`"
            )

    def _patient(self, serving: Serving) -> Reranker:
        """Return the version's reranker with more time than a request has: a busy engine is no fault of a model."""
        own = serving.reranker
        return Reranker(
            own.engine, own.index, own.model, route=own.route, store=own.store, calibration=own.calibration,
            settings=replace(own.settings, deadline_ms=PATIENCE_MS),
        )  # fmt: skip

    def _check_query(self, serving: Serving, golden: GoldenQuery) -> int:
        """Return the number of hits of a query whose candidates are scored as they must be."""
        reranker, body = self._patient(serving), self._settings.body
        try:
            window, encoded, _ = reranker.score_window(golden.query, body)
            page = reranker.search(golden.query, body, size=10) if golden.expect else None
        except EngineUnavailable:
            raise
        except (FallbackError, EngineError) as error:
            raise GateRefused(f"a golden query cannot be scored: {error}") from error
        n = len(window.hits)
        if encoded.is_empty or not n:
            return n
        if window.n_unscored > self._settings.rerank.max_unscored * n:
            raise GateRefused(f"{window.n_unscored} of {n} candidates of a golden query have no score")
        if window.n_encoded > MAX_ENCODED * n:
            raise GateRefused(
                f"{window.n_encoded} of {n} candidates of a golden query have no vector of encoder "
                f"{serving.encoder_id[:12]}: run `ssi revectorize`"
            )
        if page is not None and (page.fallback or golden.expect not in {hit.id for hit in page.hits}):
            raise GateRefused("a golden query does not find the document it must have on its first page")
        return n
