"""What the doctor finds in a click log: findings with a severity and a remedy, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "warning", "unsound"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warning", "unsound")
"""From harmless to fatal: what is learned from an unsound log would be wrong, or nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    code : str
        Stable name, for programs.
    severity : {"ok", "warning", "unsound"}
    sentence : str
        What was found and, unless all is well, what to do about it.
    numbers : mapping of str to number
        What the sentence rests on.
    """

    code: str
    severity: Severity
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankRate:
    """Showings and clicks of one rank (from 1)."""

    rank: int
    shown: int
    clicked: int

    @property
    def rate(self) -> float:
        """Clicks / showings."""
        return self.clicked / self.shown if self.shown else 0.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of a click log.

    Parameters
    ----------
    findings : tuple of Finding
        In the order in which they were looked at.
    numbers : mapping of str to number
        Rows, lists, clicks, people, and what became of the queries.
    rates : tuple of RankRate
        Clicks by rank, robots left out.
    """

    findings: tuple[Finding, ...]
    numbers: Mapping[str, float]
    rates: tuple[RankRate, ...]

    @property
    def unsound(self) -> tuple[str, ...]:
        """Sentences on why learning from the log would be unsound; empty where it would not."""
        return self._sentences("unsound")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is not as it should be, and can be lived with."""
        return self._sentences("warning")

    @property
    def severity(self) -> Severity:
        """The worst severity of all findings."""
        return max((one.severity for one in self.findings), key=SEVERITIES.index, default="ok")

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON has it."""
        return {
            "severity": self.severity,
            "findings": [
                {"code": one.code, "severity": one.severity, "sentence": one.sentence, "numbers": dict(one.numbers)}
                for one in self.findings
            ],
            "numbers": dict(self.numbers),
            "click_rate_by_rank": [
                {"rank": one.rank, "shown": one.shown, "clicked": one.clicked, "rate": one.rate} for one in self.rates
            ],
        }

    def _sentences(self, severity: Severity) -> tuple[str, ...]:
        return tuple(one.sentence for one in self.findings if one.severity == severity)
