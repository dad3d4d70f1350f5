"""How each model class is learned from one problem, and how ``auto`` chooses among them.

The rule of ``auto``: the class with the fewest parameters that is not significantly worse than the one with the best
validation MAP (paired t-test over validation queries, p < .01).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from reranker.evaluation.measures import paired_test
from reranker.models.forms import DocumentForm
from reranker.training.config import AUTO
from reranker.training.context import Float32, TrainedParameters, TrainingContext, served_parameters
from reranker.training.cubic import fit_cubic
from reranker.training.model_selection import SCALES, best_scale
from reranker.training.s2net import IDENTITIES, SiameseSettings, fit_siamese, iterations_of, start_of_texts
from reranker.training.trainer import Trainer, TrainResult

TRIED: Final = ("lexical", "tied", "low_rank", "s2net", "cubic")
"""What ``auto`` tries, in this order; the others are tested against the first."""
LEVEL: Final = 0.01
RULE: Final = f"the fewest parameters among those not worse than the best at p < {LEVEL:g} (paired t-test of AP)"


def learn(shop: TrainingContext, name: str, found: TrainedParameters | None = None) -> TrainedParameters:
    """Return a class learned in a workshop.

    Parameters
    ----------
    shop : TrainingContext
    name : str
        Of `LEARNERS`.
    found : TrainedParameters, optional
        What the first run ended with: this one, on all the evidence, makes as many epochs and takes over its weights.
    """
    if name not in shop.done:
        started = time.perf_counter()
        shop.done[name] = shop.measured(LEARNERS[name](shop, found), started)
    return shop.done[name]


def choose(shop: TrainingContext) -> tuple[TrainedParameters, dict[str, Any]]:
    """Return the class that ``auto`` takes, and what its model keeps of the choice (no times: equal runs, equal bytes).

    Each class may make at most as many passes over the preferences as the schedule has epochs, from its own start;
    that of ``cubic`` is where ``low_rank`` ended. ``s2net`` looks at as many pairs of a query and a document.
    """
    tried = [learn(shop, name) for name in TRIED]
    chosen, why = simplest(tried)
    rows = [_row(one, tried[0]) for one in tried]
    for line in _table(rows):
        shop.say(line)
    shop.say(why)
    kept = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return chosen, {"tried": kept, "chosen": chosen.name, "why": why, "rule": RULE}


def simplest(tried: Sequence[TrainedParameters]) -> tuple[TrainedParameters, str]:
    """Return the class of the fewest parameters that is not significantly worse than the best, and why."""
    best = max(tried, key=lambda one: one.values.mean())
    ordered = sorted(tried, key=lambda one: one.n_parameters)
    for one in ordered:
        test = paired_test(one.values, best.values)
        if one is best:
            return (
                one,
                f"{AUTO} takes {one.name}: the best, and every class with fewer parameters is worse. Rule: {RULE}.",
            )
        if test.p_t_test >= LEVEL:
            return one, (
                f"{AUTO} takes {one.name}: {test.difference:+.4f} MAP against the best, {best.name}, cannot be told "
                f"from none (p = {test.p_t_test:.3f}), with fewer parameters. Rule: {RULE}."
            )
    return best, f"{AUTO} takes {best.name}."


def _row(one: TrainedParameters, first: TrainedParameters) -> dict[str, Any]:
    test = paired_test(one.values, first.values)
    return {
        "class": one.name,
        "map": float(one.values.mean()),
        "parameters": one.n_parameters,
        "difference": test.difference,
        "p": test.p_t_test,
        "seconds": one.seconds,
    }


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of what was tried."""
    first = rows[0]["class"]
    lines = [f"{'class':<10} {'MAP':>6} {'parameters':>12} {'seconds':>8} {'- ' + first:>9} {'p':>8}"]
    for row in rows:
        test = f"{row['difference']:>+9.4f} {row['p']:>8.2g}" if row["class"] != first else ""
        line = f"{row['class']:<10} {row['map']:>6.4f} {row['parameters']:>12,} {row['seconds']:>8.1f} {test}"
        lines.append(line.rstrip())
    return lines


def _lexical(shop: TrainingContext, _found: TrainedParameters | None) -> TrainedParameters:
    """Return q.d: no rows, one dimension (engines map no vector of none)."""
    nothing = np.zeros((0, 1), np.float32)
    return TrainedParameters("lexical", nothing, nothing, TrainResult(nothing, nothing, 0, None), scale=0.0)


def _low_rank(shop: TrainingContext, found: TrainedParameters | None) -> TrainedParameters:
    return _linear(shop, "low_rank", found)


def _tied(shop: TrainingContext, found: TrainedParameters | None) -> TrainedParameters:
    return _linear(shop, "tied", found)


def _linear(shop: TrainingContext, name: str, found: TrainedParameters | None) -> TrainedParameters:
    """Return U^T V + I by the product's own SGD."""
    schedule = shop.schedule
    if found is not None and found.result.best_epoch < schedule.epochs:
        schedule = replace(schedule, epochs=max(found.result.best_epoch, 1))
    validators = shop.validators
    trainer = Trainer(
        shop.problem,
        schedule,
        shop.fresh_rng(),
        threads=shop.config.threads,
        patience=shop.config.patience,
        evaluate=(lambda u, v: float(np.mean([one(u, v) for one in validators]))) if validators else None,
        checkpoint=shop.kept(name),
        say=shop.say,
        progress=shop.bar(name),
    )
    result = trainer.run(*shop.start(name == "tied"))
    scale = found.scale if found else best_scale(validators, result, schedule.identity_scale)[0]
    U, V = served_parameters(result, schedule, scale)
    return TrainedParameters(name, U, V, result, identity=shop.config.identity * 1.0, scale=scale)


def _cubic(shop: TrainingContext, found: TrainedParameters | None) -> TrainedParameters:
    """Return degree 3 from where ``low_rank`` ended."""
    first, a = learn(shop, "low_rank", found).result, shop.schedule.identity_scale
    schedule = shop.schedule if found is None else replace(shop.schedule, epochs=max(found.more_epochs, 1))

    def value(U: Float32, V: Float32, Y: Float32, scale: float = 1.0) -> float:
        documents = DocumentForm("cubic", V, Y)
        return float(
            np.mean([
                one.values(_embedded(one.queries, U), documents.vectors(one.documents), scale).mean()
                for one in shop.validators
            ])
        )  # fmt: skip

    if found is not None and not found.more_epochs:
        U, V, Y, epochs = first.U, first.V, np.zeros_like(first.V), 0
    else:
        U, V, Y, epochs, _, history = fit_cubic(
            shop.problem, schedule, (first.U, first.V), patience=shop.config.patience, rng=shop.fresh_rng(),
            evaluate=value if shop.validators else None, progress=shop.bar("cubic"),
        )  # fmt: skip
        first = replace(first, history=[*first.history, *history])
    scales = SCALES if a else (1.0,)
    scale = found.scale if found else max(reversed(scales), key=lambda one: value(U, V, Y, one))
    factor = np.float32(np.sqrt(scale / (a or 1.0)))
    served = (np.ascontiguousarray(U * factor), np.ascontiguousarray(V * factor))
    identity = shop.config.identity * 1.0
    return TrainedParameters("cubic", *served, first, "cubic", Y, identity=identity, scale=scale, more_epochs=epochs)


def _s2net(shop: TrainingContext, found: TrainedParameters | None) -> TrainedParameters:
    """Return the cosine of one projection, from LSI of the texts."""
    rng = shop.fresh_rng()
    start = start_of_texts(shop.problem, shop.n_rows, shop.config.dim, rng)
    identities: tuple[float, ...] = IDENTITIES if found is None else (found.identity,)
    if not shop.config.identity:
        identities = (0.0,)
    n = iterations_of(shop.schedule) if found is None else max(found.result.best_epoch, 1)

    def value(A: Float32, a: float) -> float:
        documents = DocumentForm("unit", A)
        return float(
            np.mean([
                one.values(documents.vectors(one.queries), documents.vectors(one.documents), identity=a).mean()
                for one in shop.validators
            ])
        )  # fmt: skip

    fitted = fit_siamese(
        shop.problem, shop.schedule, start, SiameseSettings(max_iterations=n), rng=rng,
        identities=identities,
        evaluate=value if shop.validators else None, progress=shop.bar("s2net"),
    )  # fmt: skip
    result = TrainResult(fitted.A, fitted.A, fitted.best_iteration, fitted.best_map, fitted.history)
    return TrainedParameters("s2net", fitted.A, fitted.A, result, "unit", identity=fitted.identity)


def _embedded(rows: Any, table: Float32) -> Float32:
    return DocumentForm("linear", table).vectors(rows)


LEARNERS: Final[dict[str, Callable[[TrainingContext, TrainedParameters | None], TrainedParameters]]] = {
    "lexical": _lexical,
    "tied": _tied,
    "low_rank": _low_rank,
    "s2net": _s2net,
    "cubic": _cubic,
}
"""How each class is learned, by its name."""
