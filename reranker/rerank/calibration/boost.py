"""Boosts: fits the boost of impacts for an index, a body and a mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from reranker.arrays import Float64
from reranker.config import IMPACT_BOOST, ImpactMode
from reranker.engines.protocol import Engine
from reranker.errors import InputError
from reranker.evaluation import standard_error
from reranker.progress import Progress
from reranker.records import Reason
from reranker.releases import ControlRecord
from reranker.rerank.calibration.cross_validation import Gain, best_row, check_number_of_topics, cross_validated
from reranker.rerank.calibration.kept import keep_entry
from reranker.rerank.calibration.rankings import engine_run, pages_of, run_of, values_of_run
from reranker.rerank.calibration.topics import Topic, qrels_of
from reranker.rerank.search import Reranker

BOOSTS: Final = (IMPACT_BOOST, 0.5, 1.0, 2.0, 4.0, 16.0, 32.0)
"""The grid of boosts of impacts. The default is the first, so that another one must gain more than a standard error."""


@dataclass(frozen=True, slots=True)
class BoostFit:
    """Result of `fit_boost`."""

    boost: float
    """The best boost over all queries."""
    mode: ImpactMode
    measure: str
    """The measure that is maximised: ``nDCG@10`` (judgments) or ``AP`` (links)."""
    n_queries: int
    engine: float
    """Mean of the measure in the engine's order of the body, without impacts."""
    default: float
    """Mean of the measure with `IMPACT_BOOST`."""
    fitted: float
    """Mean of the measure with ``boost``."""
    held_out: float
    """Cross-validated mean (5 folds): each query is ranked with the boost fitted on the other folds."""
    held_out_error: float
    """Standard error of ``held_out``."""
    gain: Gain
    """``held_out`` - ``engine``."""
    gain_over_default: Gain
    """``held_out`` - ``default``."""
    curve: tuple[tuple[float, float], ...]
    """Pairs (boost, mean of the measure), in the order of the boosts."""
    n_fallbacks: int
    """Number of queries that got the engine's own order with some boost."""
    held_out_from_training: bool | None = None
    """True if the model was trained on none of the queries, False if it was trained on some; None: unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "gain": self.gain.to_json(), "gain_over_default": self.gain_over_default.to_json()}


def fit_boost(
    reranker: Reranker,
    topics: Sequence[Topic],
    measure: str,
    template: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> BoostFit:
    """Return the boost of impacts with the largest mean measure, with an estimate of its gain on new queries.

    The engine is asked once per query without impacts, and once for each boost of `BOOSTS`. If the gain over the
    default boost is at most one standard error, the default is returned.

    Parameters
    ----------
    reranker
        A reranker of route *impacts*. Its mode and window are used.
    topics
        Queries with judgments, at least 2 * `N_FOLDS`.
    measure
        A measure of `reranker.evaluation`.
    template
        The search body template.
    seed
        Seed for assigning the folds of the cross-validation.
    progress
        Called after each query; each boost is another pass.

    Raises
    ------
    InputError
        If there are too few topics, or if impacts can be added to the search of none.
    EngineError
        If the engine does not answer.
    """
    check_number_of_topics(len(topics), "a boost")
    qrels = qrels_of(topics)
    engine = values_of_run(qrels, engine_run(reranker, topics, template, progress), measure)
    rows: list[Float64] = []
    without: dict[int, Reason] = {}
    for boost in BOOSTS:
        settings = replace(reranker.settings, boost=boost)
        boosted = Reranker(reranker.engine, reranker.index, reranker.model, route="impacts", settings=settings)
        pages = pages_of(boosted, topics, template, progress)
        without |= {number: page.reason for number, page in enumerate(pages) if page.reason is not None}
        if len(without) == len(topics):
            raise InputError(f"impacts cannot be added to the search of any query: {without[0]}")
        rows.append(values_of_run(qrels, run_of(pages, topics), measure))
    values = np.stack(rows)
    best, held_out = best_row(values), cross_validated(values, seed)
    means = values.mean(axis=1).tolist()
    return BoostFit(
        boost=BOOSTS[best],
        mode=reranker.settings.mode,
        measure=measure,
        n_queries=len(topics),
        engine=float(engine.mean()),
        default=means[0],
        fitted=means[best],
        held_out=float(held_out.mean()),
        held_out_error=standard_error(held_out),
        gain=Gain.of(held_out, engine),
        gain_over_default=Gain.of(held_out, values[0]),
        curve=tuple(sorted(zip(BOOSTS, means, strict=True))),
        n_fallbacks=len(without),
    )


def keep_boost(engine: Engine, index: str, model_id: str, template: Mapping[str, Any], fit: BoostFit) -> ControlRecord:
    """Store the boost for a body and a mode in the model's release; return the stored record.

    Raises `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "boost": fit.boost,
        "measure": fit.measure,
        "queries": fit.n_queries,
        "engine": round(fit.engine, 6),
        "held_out": round(fit.held_out, 6),
        **({} if fit.held_out_from_training is None else {"held_out_from_training": fit.held_out_from_training}),
    }
    return keep_entry(engine, index, model_id, template, fit.mode, entry)
