"""Accounts of the input of a command: how many records were given, how many were used, and why others were not."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from reranker.errors import InputError

MAX_SAMPLES = 3
"""Largest number of samples for a reason."""
NOTED_UNKNOWN = 0.10
"""Share of records with unknown ids above which a warning is given."""
MAX_UNKNOWN = 0.5
"""Largest share of records with unknown ids that is accepted without ``--allow-partial``, where a command has it."""
UNKNOWN_QUERY = "unknown query id"
UNKNOWN_DOCUMENT = "unknown document id"
"""Reasons why a record cannot be used: its query, or its document, is not given."""


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
    note: str = ""
    """Statement of what was not checked, with the reason."""

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
        note = f" ({self.note})" if self.note else ""
        if not self.given:
            return f"{self.kind}: none given{note}"
        if not self.left_out:
            return f"{self.kind}: {self.given:,} given, all used{note}"
        reasons = "; ".join(part.sentence for part in self.left_out)
        sums = f"{self.given:,} given = {self.used:,} used + {self.n_left_out:,} left out"
        return f"{self.kind}: {sums}: {reasons}{note}"

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON-compatible values."""
        left_out = [{"reason": part.reason, "count": part.count, "samples": part.samples} for part in self.left_out]
        about = {"kind": self.kind, "given": self.given, "used": self.used, "left_out": left_out}
        return {**about, "note": self.note} if self.note else about


def merged(parts: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return one entry for each reason, sorted by reason, with the sum of the counts and the first samples."""
    sums: dict[str, LeftOut] = {}
    for part in parts:
        before = sums.get(part.reason, LeftOut(part.reason, 0))
        samples = tuple(dict.fromkeys((*before.samples, *part.samples)))[:MAX_SAMPLES]
        sums[part.reason] = LeftOut(part.reason, before.count + part.count, samples, part.is_fault)
    return tuple(sums[reason] for reason in sorted(sums) if sums[reason].count)


def summed(accounts: Iterable[InputAccount], kind: str) -> InputAccount:
    """Return one account for the records of several accounts."""
    parts = list(accounts)
    left_out = merged(part for account in parts for part in account.left_out)
    notes = dict.fromkeys(account.note for account in parts if account.note)
    return InputAccount(kind, sum(account.used for account in parts), left_out, "; ".join(notes))


def account_of_ids(
    kind: str,
    records: Iterable[tuple[str, str]],
    queries: Container[str] | None,
    documents: Container[str] | None,
) -> InputAccount:
    """Return the account of records of a query id and a document id; those with an unknown id are left out.

    ``queries`` or ``documents`` is None if these ids are not known here: they are not checked then.
    """
    n_used, counts = 0, {UNKNOWN_QUERY: 0, UNKNOWN_DOCUMENT: 0}
    samples: dict[str, dict[str, None]] = {reason: {} for reason in counts}
    for query, document in records:
        if queries is not None and query not in queries:
            reason, id_ = UNKNOWN_QUERY, query
        elif documents is not None and document not in documents:
            reason, id_ = UNKNOWN_DOCUMENT, document
        else:
            n_used += 1
            continue
        counts[reason] += 1
        if len(samples[reason]) < MAX_SAMPLES:
            samples[reason][id_] = None
    return InputAccount(
        kind, n_used, merged(LeftOut(reason, n, tuple(samples[reason])) for reason, n in counts.items())
    )


def check_unknown(account: InputAccount, advice: str, limit: float | None, say: Callable[[str], None]) -> None:
    """Give a warning if more than `NOTED_UNKNOWN` of the records were left out for a fault.

    `InputError` is raised if they are more than ``limit`` of all records (None: no limit). ``advice`` says which
    options to check, and how to go on without these records.
    """
    faults = [part for part in account.left_out if part.is_fault]
    n_unknown = sum(part.count for part in faults)
    if n_unknown <= NOTED_UNKNOWN * account.given:
        return
    share = n_unknown / account.given
    reasons = "; ".join(part.sentence for part in faults)
    message = f"{share:.0%} of the {account.given:,} {account.kind} cannot be used: {reasons}"
    if limit is not None and share > limit:
        raise InputError(f"{message}. At most {limit:.0%} are accepted: {advice}", share=share)
    say(f"warning: {message}")
