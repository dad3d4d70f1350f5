"""Accounts of the input of a command: how many records were given, how many were used, and why others were not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

MAX_SAMPLES = 3
"""Largest number of samples for a reason."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that were not used, for one reason."""

    reason: str
    count: int
    samples: tuple[str, ...] = ()
    """Ids or positions of some of the records, at most `MAX_SAMPLES`."""
    is_fault: bool = True
    """False if such records are normal in sound input: they leave the exit status 0."""

    @property
    def sentence(self) -> str:
        """Number, reason and samples as text."""
        samples = f" ({', '.join(self.samples)}{', ...' if self.count > len(self.samples) else ''})"
        return f"{self.count:,} {self.reason}{samples if self.samples else ''}"


@dataclass(frozen=True, slots=True)
class InputAccount:
    """Account of one kind of records: given = used + left out."""

    kind: str
    """Name of the records, in the plural."""
    used: int
    left_out: tuple[LeftOut, ...] = ()

    @property
    def n_left_out(self) -> int:
        """Number of records that were not used."""
        return sum(part.count for part in self.left_out)

    @property
    def has_faults(self) -> bool:
        """True if records were left out for a reason that is a fault of the input."""
        return any(part.count and part.is_fault for part in self.left_out)

    @property
    def given(self) -> int:
        """Number of all records."""
        return self.used + self.n_left_out

    @property
    def sentence(self) -> str:
        """The account as text of one line."""
        if not self.left_out:
            return f"{self.kind}: {self.given:,} given, all used"
        reasons = "; ".join(part.sentence for part in self.left_out)
        return f"{self.kind}: {self.given:,} given = {self.used:,} used + {self.n_left_out:,} left out: {reasons}"

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON-compatible values."""
        left_out = [asdict(part) for part in self.left_out]
        return {"kind": self.kind, "given": self.given, "used": self.used, "left_out": left_out}


def merged(parts: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return one entry for each reason, sorted by reason, with the sum of the counts and the first samples."""
    sums: dict[str, LeftOut] = {}
    for part in parts:
        before = sums.get(part.reason, LeftOut(part.reason, 0))
        samples = tuple(dict.fromkeys((*before.samples, *part.samples)))[:MAX_SAMPLES]
        sums[part.reason] = LeftOut(part.reason, before.count + part.count, samples, part.is_fault)
    return tuple(sums[reason] for reason in sorted(sums) if sums[reason].count)
