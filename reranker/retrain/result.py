"""The result of a retraining, for its command, its report and ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reranker.errors import GateRefused


@dataclass(frozen=True)
class RetrainResult:
    """Result of a retraining."""

    outcome: Literal["promoted", "refused", "would promote"]
    reason: str
    """Sentences of the gate."""
    index: str
    live_before: str | None
    """Id of the live model before; None if there was none."""
    live_after: str | None
    """Id of the live model afterwards."""
    base: str
    """Id of the model from which training started."""
    candidate: str
    """Id of the new model."""
    encoder: str
    """Encoder id of the new model."""
    model_path: Path
    """Folder of the new model."""
    data: Mapping[str, Any]
    """Statistics of the data, by the names of ``--json``: numbers of impressions used for training (``learned``, of
    them ``undated`` without a time) and for the gate (``judged``); ``cutoff``, the start of the newest slice, and
    ``first`` and ``last``, the ends of the log, in milliseconds; ``people`` in the newest slice (users, or sessions if
    no user is known); numbers of preferences from clicks (``pairs``) and from ``other`` sources; ``documents``; and
    what was ``dropped``, by reason."""
    verdict: Mapping[str, Any]
    """Verdict of the gate as JSON."""
    documents_written: int = 0
    """Number of document updates in the index; 0 if the encoder did not change."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of each step in seconds."""
    report: Path | None = None
    """The HTML report, if written."""

    @property
    def exit_code(self) -> int:
        """Exit status of the command: 0, or the status for a refusal."""
        return GateRefused.exit_code if self.outcome == "refused" else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        values = asdict(self)
        values["model_path"] = str(self.model_path)
        values["report"] = None if self.report is None else str(self.report)
        values["seconds"] = {step: round(value, 3) for step, value in self.seconds.items()}
        return values
