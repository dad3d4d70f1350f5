"""Results where a query is tested on more than once, or several queries belong to one topic: one value for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from papers.keeping import Values
from papers.results import Results
from papers.task import Table
from reranker.errors import ShapeMismatch

ALL = "all"


def averaged(results: Results, groups: Mapping[str, Sequence[str]]) -> Results:
    """Return results with one value a group: the mean of all its queries in all studies.

    Repeated splits test on a query several times, and queries of a topic share their judgements: such values are not
    independent, and standard errors and tests over them would claim too much. Groups count alike. A system that
    failed on some study is left out, for its groups would be others.

    Parameters
    ----------
    results : Results
    groups : mapping of study name to sequence of str
        The group of each test query.

    Raises
    ------
    ShapeMismatch
        If a study has no groups.
    """
    missing = set(results.studies) - set(groups)
    if missing:
        raise ShapeMismatch(f"no groups of the test queries of {', '.join(sorted(missing))}: give one a query")
    values: dict[tuple[str, str], dict[str, Values]] = {}
    for system in results.systems:
        if results.failure(system):
            continue
        measures = _per_query(results, system, groups)
        if measures:
            values[ALL, system] = {measure: _by_group(results, system, measure, groups) for measure in measures}
    failures = {(ALL, system): results.failure(system) for system in results.systems if results.failure(system)}
    seconds: dict[tuple[str, str], float] = {}
    for (_, system), spent in results.seconds.items():
        seconds[ALL, system] = seconds.get((ALL, system), 0.0) + spent
    return replace(results, values=values, failures=failures, settings={}, seconds=seconds, reused=frozenset())


def spread(results: Results, measure: str, title: str) -> Table:
    """Return mean, deviation, least and greatest of each system's means over studies."""
    rows = []
    for name in results.systems:
        means = np.array(
            [np.nanmean(found[measure]) for (_, system), found in results.values.items()
             if system == name and measure in found]
        )  # fmt: skip
        if len(means):
            deviation = float(means.std(ddof=1)) if len(means) > 1 else 0.0
            figures = (means.mean(), deviation, means.min(), means.max())
            rows.append((results.titles[name], *(f"{figure:.3f}" for figure in figures), str(len(means))))
    note = "Of the means over the test queries of each; splits that overlap are not independent."
    return Table(title, ("system", "mean", "deviation", "least", "greatest", "number"), tuple(rows), note)


def _per_query(results: Results, system: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the measures that have a value a query in every study."""
    found = [(study, results.values.get((study, system), {})) for study in results.studies]
    names = found[0][1] if found else {}
    return [
        name for name in names
        if all(name in values and len(values[name]) == len(groups[study]) for study, values in found)
    ]  # fmt: skip


def _by_group(results: Results, system: str, measure: str, groups: Mapping[str, Sequence[str]]) -> Values:
    """Return the mean of each group, in the order of their names; NaN where it has no value."""
    values = np.concatenate([results.values[study, system][measure] for study in results.studies])
    names = np.concatenate([np.array(groups[study], dtype=str) for study in results.studies])
    _, number = np.unique(names, return_inverse=True)
    there = ~np.isnan(values)
    totals = np.bincount(number[there], values[there], minlength=number.max(initial=-1) + 1)
    times = np.bincount(number[there], minlength=len(totals))
    means: Values = np.divide(totals, times, out=np.full(len(totals), np.nan), where=times > 0)
    return means
