"""How often the gate of retraining promotes: models known to be equal, better, worse or random, on simulated logs.

    OMP_NUM_THREADS=1 python benchmarks/gate.py [--small] [--json FILE]

Every log is drawn from a live ranking: 300 queries of 10 shown documents, a fifth of them relevant; people ask queries
unequally often and click what they look at with probability .6 (relevant) or .05. A model sees relevance with errors
that all models share, and errors of its own; the smaller its own, the better it is. Table 1: 200 logs of 2,000
impressions of 500 people, position-based readers (p = 1 / rank), propensities known. Table 2 (60 logs a row): the same
models where readers are others than the weights assume, or where the weights are wrong. Table 3 (100 logs): power by
the number of people. Then the time of one decision on 100,000 impressions.

`true` is the mean true change of nDCG (by the chances of a click of all documents), `found` the mean that the gate
estimates; `wrongly` counts promotions where the true change on the log's queries is not above 0.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from reranker.clicks.propensities import estimate_propensities
from reranker.clicks.simulator import (
    Cascade,
    ClickModel,
    DynamicBayesian,
    LogPlan,
    PositionBased,
    SimulatedLog,
    simulate,
)
from reranker.retrain.gate import GateVerdict, ShownLists, decide
from reranker.retrain.settings import GateConfig
from tests.click_readers import counts_of

N_QUERIES, N_SHOWN = 300, 10
LIKED, DISLIKED = 0.6, 0.05
TRUE = tuple(1.0 / rank for rank in range(1, N_SHOWN + 1))
DISCOUNT = 1.0 / np.log2(1.0 + np.arange(1, N_SHOWN + 1))
Values = npt.NDArray[np.float64]
Models = Callable[["Site", np.random.Generator], tuple[Values, Values]]
Weights = Callable[[SimulatedLog], "tuple[float, ...] | None"]


@dataclass(frozen=True)
class Site:
    """Chances of a click of each query's documents once looked at, and what every model sees of relevance."""

    attraction: Values
    common: Values

    def model(self, rng: np.random.Generator, error: float) -> Values:
        """Return the scores of a model whose own errors have this deviation."""
        return self.common + error * rng.standard_normal(self.common.shape)


def new_site(rng: np.random.Generator) -> Site:
    relevant = rng.random((N_QUERIES, N_SHOWN)) < 0.2
    return Site(np.where(relevant, LIKED, DISLIKED), 2.0 * relevant + rng.standard_normal(relevant.shape))


def of_errors(live: float, candidate: float) -> Models:
    return lambda site, rng: (site.model(rng, live), site.model(rng, candidate))


def itself(site: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    model = site.model(rng, 1.0)
    return model, model


def random_weights(site: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    return site.model(rng, 1.0), rng.standard_normal(site.common.shape)


def shuffled(site: Site, rng: np.random.Generator) -> tuple[Values, Values]:
    live = site.model(rng, 1.0)
    return live, rng.permuted(live, axis=1)


MODELS: dict[str, Models] = {
    "the same model": itself,
    "another model, as good": of_errors(1.0, 1.0),
    "better": of_errors(1.5, 0.5),
    "a little better": of_errors(1.0, 0.7),
    "worse": of_errors(0.5, 1.5),
    "a little worse": of_errors(0.7, 1.0),
    "random weights": random_weights,
    "shuffled live order": shuffled,
}


def estimated(method: str) -> Weights:
    return lambda log: estimate_propensities(counts_of(log), method).by_rank


def power(eta: float) -> Weights:
    return lambda _log: tuple(p**eta for p in TRUE)


CIRCUMSTANCES: dict[str, tuple[ClickModel, Weights]] = {
    "no weights": (PositionBased(TRUE), lambda _log: None),
    "click rates by rank as weights": (PositionBased(TRUE), estimated("rate")),
    "weights by EM, 20 % shuffled": (PositionBased(TRUE), estimated("em")),
    "weights from 20 % shuffled lists": (PositionBased(TRUE), estimated("randomised")),
    "weights too flat (rank^-0.5)": (PositionBased(TRUE), power(0.5)),
    "weights too steep (rank^-1.5)": (PositionBased(TRUE), power(1.5)),
    "cascade, its examination known": (Cascade(), lambda log: tuple(log.examination)),
    "cascade, EM, 20 % shuffled": (Cascade(), estimated("em")),
    "DBN, its examination known": (DynamicBayesian(), lambda log: tuple(log.examination)),
}


def gate_input(log: SimulatedLog, live: Values, candidate: Values) -> ShownLists:
    """Return the impressions with a click, each with the scores of its documents by rank."""
    rows = np.flatnonzero(log.clicked.any(axis=1))
    of, shown = log.query[rows], log.shown[rows]
    return ShownLists(
        np.arange(0, N_SHOWN * len(rows) + 1, N_SHOWN, dtype=np.int64),
        np.tile(np.arange(1, N_SHOWN + 1), len(rows)),
        log.clicked[rows].ravel(),
        np.take_along_axis(live[of], shown, axis=1).ravel(),
        np.take_along_axis(candidate[of], shown, axis=1).ravel(),
        [f"query {number}" for number in of.tolist()],
        [f"user {number}" for number in log.user[rows].tolist()],
    )


def true_ndcg(site: Site, scores: Values, query: npt.NDArray[np.int64]) -> float:
    gains = np.take_along_axis(site.attraction, np.argsort(-scores, axis=1, kind="stable"), axis=1) @ DISCOUNT
    ideal = -np.sort(-site.attraction, axis=1) @ DISCOUNT
    return float(gains[query].sum() / ideal[query].sum())


def one_log(
    models: Models, readers: ClickModel, weights: Weights, plan: LogPlan, rng: np.random.Generator, config: GateConfig
) -> tuple[GateVerdict, float]:
    site = new_site(rng)
    live, candidate = models(site, rng)
    order = np.argsort(-live, axis=1, kind="stable")
    log = simulate(order, np.take_along_axis(site.attraction, order, axis=1), readers, plan, rng)
    verdict = decide(gate_input(log, live, candidate), None, weights(log), rng, config)
    return verdict, true_ndcg(site, candidate, log.query) - true_ndcg(site, live, log.query)


def row(
    models: str, circumstance: str, readers: ClickModel, weights: Weights, n: int, plan: LogPlan, config: GateConfig
) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    found, true, failed = [], [], dict[str, int]()
    promoted = wrongly = 0
    for _ in range(n):
        verdict, change = one_log(MODELS[models], readers, weights, plan, rng, config)
        promoted += verdict.promoted
        wrongly += verdict.promoted and change <= 0
        true.append(change)
        found.append(verdict.measured[0].difference.estimate)
        for check in verdict.checks:
            failed[check.name] = failed.get(check.name, 0) + (not check.passed)
    result = {
        "models": models,
        "circumstance": circumstance,
        "people": plan.users,
        "logs": n,
        "promoted": promoted,
        "wrongly": wrongly,
        "true": round(float(np.mean(true)), 4),
        "found": round(float(np.mean(found)), 4),
        "deviation": round(float(np.std(found)), 4),
        "failed": {k: v for k, v in failed.items() if v},
    }
    print(
        f"{models:24} {circumstance:32} {plan.users:6,} people  promoted {promoted:3}/{n}, wrongly {wrongly:3}"
        f"  true {result['true']:+.4f}"
        f"  found {result['found']:+.4f} ± {result['deviation']:.4f}  {result['failed']}",
        flush=True,
    )
    return result


def decision_time(n: int) -> dict[str, float]:
    rng = np.random.default_rng(2)
    site = new_site(rng)
    live, candidate = site.model(rng, 1.0), site.model(rng, 0.7)
    order = np.argsort(-live, axis=1, kind="stable")
    plan = LogPlan(n, users=n // 4, popularity=0.7)
    log = simulate(order, np.take_along_axis(site.attraction, order, axis=1), PositionBased(TRUE), plan, rng)
    shown = gate_input(log, live, candidate)
    started = time.perf_counter()
    decide(shown, None, TRUE, rng)
    seconds = time.perf_counter() - started
    print(f"one decision on {n:,} impressions ({len(shown.query):,} with a click): {seconds:.2f} s")
    return {"impressions": n, "with_a_click": len(shown.query), "seconds": round(seconds, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="10 logs a row")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    n = 10 if options.small else 200
    config = GateConfig(resamples=499)
    plan = LogPlan(2_000, users=500, popularity=0.7)
    known: Weights = lambda _log: TRUE  # noqa: E731
    readers = PositionBased(TRUE)
    table = [row(models, "weights known", readers, known, n, plan, config) for models in MODELS]
    wrong = [
        row(
            models, name, *CIRCUMSTANCES[name], min(n, 60), replace(plan, randomised=0.2 * ("shuffled" in name)), config
        )
        for name in CIRCUMSTANCES
        for models in ("another model, as good", "better", "worse", "random weights", "shuffled live order")
    ]
    powers = [
        row(models, "weights known", readers, known, max(10, n // 2), LogPlan(4 * people, people, 0.7), config)
        for people in (50, 200, 1_000, 4_000)
        for models in ("better", "a little better")
    ]
    timed = decision_time(10_000 if options.small else 100_000)
    if options.json:
        figures = {"weights known": table, "other readers or weights": wrong, "power": powers, "time": timed}
        write_results(options.json, figures)


if __name__ == "__main__":
    main()
