"""What `ssi serve` offers besides `reranker.service.app.own_parts`."""

from __future__ import annotations

from reranker.service import events, page
from reranker.service.app import Part
from reranker.service.interleave import MODE, Interleaving


def all_parts(challenger: str | None = None) -> tuple[Part, ...]:
    """Return every part that `ssi serve` offers.

    Parameters
    ----------
    challenger : str or None
        Version that is interleaved with the live one; None: the live one alone answers.
    """
    modes = {} if challenger is None else {MODE: Interleaving(challenger)}
    return Part(events.router, modes=modes), page.PART
