"""Tables of the tasks across languages: directions apart, tests of accuracy, dimensions, and what was tuned."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from papers import plots
from papers.keeping import Values
from papers.mates import unpaired_test
from papers.mates_measures import BACKWARD, BOTH_WAYS, FORWARD, RECIPROCAL, TOP, hits
from papers.results import Results
from papers.tables import figure, p_value
from papers.task import Picture, Table
from reranker.evaluation.measures import standard_error


def directions_table(results: Results) -> Table:
    """Return accuracy and MRR of each direction apart."""
    columns = [measure + way for way in (FORWARD, BACKWARD) for measure in BOTH_WAYS]
    rows = [
        (results.titles[name], *(figure(column, results.mean(name, column), results.standard_error(name, column))
                                 for column in columns))
        for name in _measured(results, columns[0])
    ]  # fmt: skip
    note = "Forward: a query's mate among the documents; backward: a document's among the queries."
    return Table("Each direction apart", ("system", *columns), tuple(rows), note)


def accuracy_table(results: Results) -> Table:
    """Return the tests of top-1 accuracy of every two systems: the paper's unpaired one, and a paired one by pair."""
    names = _measured(results, TOP)
    couples = list(combinations(names, 2))
    rows = []
    for first, second in couples:
        unpaired = unpaired_test(_hits(results, first), _hits(results, second), len(couples))
        paired = results.paired(first, second, TOP)
        rows.append(
            (
                results.titles[first],
                results.titles[second],
                f"{unpaired.difference:+.4f}",
                p_value(unpaired.p),
                p_value(unpaired.p_corrected),
                p_value(paired.p_t_test),
                p_value(min(1.0, paired.p_t_test * len(couples))),
            )
        )
    columns = ("first", "second", "difference", "unpaired p", "corrected", "paired p", "corrected ")
    note = f"Corrected: times {len(couples)} comparisons (Bonferroni), at most 1. The paper asks for p < .01."
    return Table("Differences of top-1 accuracy", columns, tuple(rows), note)


def dimensions_table(title: str, reached: Mapping[int, Results]) -> Table:
    """Return MRR on validation by number of dimensions."""
    first = next(iter(reached.values()))
    rows = []
    for name, shown in first.titles.items():
        cells = [_cell(results, name) for results in reached.values()]
        rows.append((shown, *cells))
    note = "MRR of the validation pairs, the mean of both directions ± standard error over pairs."
    return Table(title, ("system", *(f"N = {size}" for size in reached)), tuple(rows), note)


def dimensions_picture(title: str, reached: Mapping[int, Results]) -> Picture:
    """Return the same as curves."""
    first = next(iter(reached.values()))
    series = {
        shown: [
            (results.mean(name, RECIPROCAL), results.standard_error(name, RECIPROCAL)) for results in reached.values()
        ]
        for name, shown in first.titles.items()
    }
    return plots.lines("comparable-by-dimension", title, ("dimensions", "MRR on validation"), list(reached), series)


def _cell(results: Results, name: str) -> str:
    """Return a figure, or why there is none."""
    values = results.pooled(name, RECIPROCAL)
    if not len(values):
        return results.failure(name)
    return figure(RECIPROCAL, float(values.mean()), standard_error(values))


def _measured(results: Results, measure: str) -> list[str]:
    return [name for name in results.systems if results.has(name, measure)]


def _hits(results: Results, name: str) -> Values:
    return np.concatenate([hits(found) for (_, system), found in results.values.items() if system == name])
