"""What a retraining did and found: the command prints it, ``--json`` and the report show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reranker.errors import GateRefused

Outcome = Literal["promoted", "refused", "would promote"]


@dataclass(frozen=True)
class Data:
    """What of the log was used.

    Parameters
    ----------
    learned, judged : int
        Impressions older than the newest slice, and those of the newest slice with a click that the gate used.
    undated : int
        Impressions without a time; learned from.
    cutoff : int
        Where the newest slice begins, milliseconds.
    first, last : int
        Times of the first and the last dated impression, milliseconds.
    people : int
        Distinct users (or sessions) in the newest slice.
    pairs : int
        Preferences learned from.
    other : int
        Preferences of links and judgements that were mixed in.
    documents : int
    dropped : mapping of reason to number
        What of the log, and of the preferences, was not used.
    """

    learned: int
    judged: int
    undated: int
    cutoff: int
    first: int
    last: int
    people: int
    pairs: int
    other: int
    documents: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class RetrainResult:
    """How a retraining ended.

    Parameters
    ----------
    outcome : {'promoted', 'refused', 'would promote'}
    reason : str
        One sentence of the gate.
    index : str
    live_before, live_after : str or None
        Model ids.
    base, candidate : str
        Model ids.
    encoder : str
        Encoder id of the candidate.
    model_path : Path
        Where the candidate lies.
    data : Data
    verdict : mapping
        The gate's, as JSON.
    documents_written : int
        Updates of the index; 0 where the encoder stayed.
    seconds : mapping of step to seconds
    report : Path or None
    """

    outcome: Outcome
    reason: str
    index: str
    live_before: str | None
    live_after: str | None
    base: str
    candidate: str
    encoder: str
    model_path: Path
    data: Data
    verdict: Mapping[str, Any]
    documents_written: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of the command: 0, or that of a refusal."""
        return GateRefused.exit_code if self.outcome == "refused" else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        values = asdict(self)
        values["model_path"] = str(self.model_path)
        values["report"] = None if self.report is None else str(self.report)
        values["seconds"] = {step: round(value, 3) for step, value in self.seconds.items()}
        return values
