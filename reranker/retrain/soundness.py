"""Whether a click log may be learned from, by the doctor's word."""

from __future__ import annotations

from reranker.clicks.doctor import examine
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import PairConfig
from reranker.engines.base import Engine
from reranker.errors import GateRefused, NothingToLearn

NO_CLICKS = "clicks"
"""Code of the doctor's finding that nothing was clicked."""


def check_log(log: ClickLog, engine: Engine, index: str, config: PairConfig, *, allow_unsound: bool) -> tuple[str, ...]:
    """Return what the doctor warns of.

    Raises
    ------
    NothingToLearn
        If there is no click, and nothing else is wrong.
    GateRefused
        If learning from the log would be unsound, unless ``allow_unsound``.
    """
    diagnosis = examine(log, engine, index, config=config)
    unsound = [one for one in diagnosis.findings if one.severity == "unsound"]
    if unsound and all(one.code == NO_CLICKS for one in unsound):
        raise NothingToLearn(unsound[0].sentence)
    if unsound and not allow_unsound:
        lines = "".join(f"\n  - {one.sentence}" for one in unsound)
        raise GateRefused(
            "the click log is unsound to learn from, so nothing was trained (--allow-unsound goes on all the same):"
            f"{lines}",
            index=index,
            codes=tuple(one.code for one in unsound),
        )
    return (*diagnosis.unsound, *diagnosis.warnings)
