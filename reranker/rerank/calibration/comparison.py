"""Comparison of four orders of the topics: the engine's, with field weights, by word matches, and the model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from reranker.evaluation import PairedTest, paired_test
from reranker.rerank.calibration.alpha import Fit
from reranker.rerank.calibration.rankings import values_of_run
from reranker.rerank.calibration.topics import Topic, qrels_of

COMPARED: Final = ("AP", "nDCG@10")
"""Measures by which orders are compared."""
PAIRS: Final = (
    ("weights", "engine"),
    ("words", "engine"),
    ("words", "weights"),
    ("model", "engine"),
    ("model", "weights"),
)
"""Orders of which the first is compared with the second."""


class OrderComparison(NamedTuple):
    """Four orders of the calibration's queries.

    ``engine`` is the engine's order with the body that is calibrated, ``weights`` its order with the model's field
    weights (`weighted_template`), ``words`` the candidates of ``engine`` by the model's word matches q·d only, without
    the learned part, and ``model`` the blended order with the alpha and weights fitted on the other folds.
    """

    means: Mapping[str, Mapping[str, float]]
    """Means by order and measure."""
    differences: Mapping[tuple[str, str], Mapping[str, PairedTest]]
    """Tests of the first order minus the second, by measure."""

    @classmethod
    def of(cls, fit: Fit, topics: Sequence[Topic], weighted: Mapping[str, Sequence[str]]) -> OrderComparison:
        """Return the comparison on the topics of a fit; ``weighted`` is the `engine_run` with the field weights."""
        qrels = qrels_of(topics)
        runs = {"engine": fit.runs["engine"], "weights": weighted, **fit.runs}
        values = {
            order: {measure: values_of_run(qrels, run, measure) for measure in COMPARED} for order, run in runs.items()
        }
        return cls(
            {order: {measure: float(of.mean()) for measure, of in values[order].items()} for order in values},
            {
                (first, second): {one: paired_test(values[first][one], values[second][one]) for one in COMPARED}
                for first, second in PAIRS
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; ``interval`` is half the width of the 95 % confidence interval."""
        return {
            "means": self.means,
            "differences": {
                f"{first} - {second}": {
                    measure: {
                        "difference": test.difference,
                        "interval": test.interval,
                        "p": None if math.isnan(test.p_t_test) else test.p_t_test,
                    }
                    for measure, test in tests.items()
                }
                for (first, second), tests in self.differences.items()
            },
        }
