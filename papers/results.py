"""What systems reached: means over studies, paired tests, and the table that stands beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from papers.keeping import Values
from papers.tables import figure, p_value, seconds
from papers.task import Table
from reranker.errors import ConfigError
from reranker.evaluation.measures import PairedTest, paired_test, standard_error

Place = tuple[str, str]
NOTE = (
    "± is the standard error over queries. p is of the paired t-test against {reference}. Figures under “paper” are "
    "the paper's own, on other data: a reference, not something to reach."
)


@dataclass(frozen=True, eq=False)
class Results:
    """What each system reached on each study.

    Parameters
    ----------
    task : str
        Id of the task.
    titles : mapping of system name to title
        In the order of the table.
    values : mapping of (study, system) to mapping of measure to (n,) float64
        One value a query, or pair; NaN where a query has none.
    failures : mapping of (study, system) to str
        Why there are no values.
    settings : mapping of (study, system) to mapping
        What was chosen on validation.
    seconds : mapping of (study, system) to float
        To fit and to measure, when that was done.
    reused : frozenset of (study, system)
        Which were there from an earlier run.
    """

    task: str
    titles: Mapping[str, str]
    values: Mapping[Place, Mapping[str, Values]]
    failures: Mapping[Place, str] = field(default_factory=dict)
    settings: Mapping[Place, Mapping[str, Any]] = field(default_factory=dict)
    seconds: Mapping[Place, float] = field(default_factory=dict)
    reused: frozenset[Place] = frozenset()

    @property
    def studies(self) -> tuple[str, ...]:
        """Names of the studies, in the order they were run."""
        return tuple(dict.fromkeys(study for study, _ in (*self.values, *self.failures)))

    @property
    def systems(self) -> tuple[str, ...]:
        """Names of the systems, in the order of the table."""
        return tuple(self.titles)

    def of_study(self, study: str) -> Results:
        """Return what was reached on one study."""
        parts = (self.values, self.failures, self.settings, self.seconds)
        kept: list[Any] = [{place: value for place, value in part.items() if place[0] == study} for part in parts]
        reused = frozenset(place for place in self.reused if place[0] == study)
        return replace(self, values=kept[0], failures=kept[1], settings=kept[2], seconds=kept[3], reused=reused)

    def joined(self, others: Sequence[Results]) -> Results:
        """Return these results and those of other studies of the same systems."""
        every = (self, *others)
        parts = {
            name: {place: value for one in every for place, value in getattr(one, name).items()}
            for name in ("titles", "values", "failures", "settings", "seconds")
        }
        return Results(task=self.task, reused=frozenset().union(*(one.reused for one in every)), **parts)

    def has(self, system: str, measure: str) -> bool:
        """Return whether a system has values of a measure on any study."""
        return any(name == system and measure in found for (_, name), found in self.values.items())

    def pooled(self, system: str, measure: str) -> Values:
        """Return the values of all studies, one after the other; NaN among them where a query has none."""
        parts = [found[measure] for (_, name), found in self.values.items() if name == system and measure in found]
        return np.concatenate(parts) if parts else np.empty(0)

    def mean(self, system: str, measure: str) -> float:
        """Return the mean over the queries of all studies; NaN if there is no value."""
        there = _there(self.pooled(system, measure))
        return float(there.mean()) if len(there) else float("nan")

    def standard_error(self, system: str, measure: str) -> float:
        """Return the standard error of `mean`."""
        return standard_error(_there(self.pooled(system, measure)))

    def failure(self, system: str) -> str:
        """Return why a system has no values on some study; "" if it has on all."""
        reasons = dict.fromkeys(reason for (_, name), reason in self.failures.items() if name == system)
        return "; ".join(reasons)

    def paired(self, first: str, second: str, measure: str, rng: np.random.Generator | None = None) -> PairedTest:
        """Return the paired test of first minus second over the queries of all studies that both have values for.

        Raises
        ------
        ConfigError
            If there is no such query.
        """
        left: list[Values] = []
        right: list[Values] = []
        for study in self.studies:
            one, other = (self.values.get((study, name), {}).get(measure) for name in (first, second))
            if one is not None and other is not None:
                left.append(one)
                right.append(other)
        if not left:
            raise ConfigError(f"{first} and {second} have no {measure} on the same study: there is nothing to compare")
        a, b = np.concatenate(left), np.concatenate(right)
        both = ~(np.isnan(a) | np.isnan(b))
        return paired_test(a[both], b[both], rng)

    def table(
        self, title: str, paper: Mapping[str, Mapping[str, str]], measures: Sequence[str], reference: str
    ) -> Table:
        """Return the table of the systems, the paper's figures beside ours.

        Parameters
        ----------
        title : str
        paper : mapping of system name to mapping of measure to str
            Figures as printed; shown under the head "paper".
        measures : sequence of str
            Columns.
        reference : str
            The system that all others are tested against.
        """
        printed = [measure for measure in measures if any(measure in row for row in paper.values())]
        columns = ["system"]
        for measure in measures:
            columns += [measure, "p", *([f"{measure}, paper"] if measure in printed else [])]
        rows = tuple(self._row(name, paper.get(name, {}), measures, printed, reference) for name in self.titles)
        note = NOTE.format(reference=self.titles.get(reference, reference))
        return Table(title, (*columns, "seconds"), rows, note)

    def _row(
        self, name: str, paper: Mapping[str, str], measures: Sequence[str], printed: Sequence[str], reference: str
    ) -> tuple[str, ...]:
        """Return the row of a system; one without values says why in its first column."""
        failure = self.failure(name)
        cells = [f"{self.titles[name]} ({failure})" if failure else self.titles[name]]
        for measure in measures:
            cells += [self._figure(name, measure), self._p(name, reference, measure)]
            if measure in printed:
                cells.append(paper.get(measure, ""))
        spent = sum(value for (_, system), value in self.seconds.items() if system == name)
        return (*cells, seconds(spent) if spent else "")

    def _figure(self, name: str, measure: str) -> str:
        """Return mean ± standard error, empty if there is none."""
        return figure(measure, self.mean(name, measure), self.standard_error(name, measure))

    def _p(self, name: str, reference: str, measure: str) -> str:
        """Return p against the reference, empty where nothing can be compared."""
        if name == reference or not (self.has(name, measure) and self.has(reference, measure)):
            return ""
        return p_value(self.paired(name, reference, measure).p_t_test)


def _there(values: Values) -> Values:
    return values[~np.isnan(values)]
