"""Every error this project raises on purpose: a class with data, and a message of value, rule and remedy.

``exit_code`` is the process exit status that the command line returns for the class; the README lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from reranker.records import Reason, ReasonKind


class RerankerError(Exception):
    """Base of all errors of this project.

    The message says what is wrong (with the offending value), the rule and the remedy; ``error.data`` are the values.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.data)


def _rebuild(cls: type[RerankerError], message: str, data: dict[str, Any]) -> RerankerError:
    """Recreate an error in another process without calling a subclass's own constructor."""
    error = cls.__new__(cls)
    RerankerError.__init__(error, message, **data)
    return error


class ConfigError(RerankerError):
    """A configuration key or value that is not legal; the message lists the legal ones."""

    exit_code = 2


class InputError(RerankerError):
    """Input data that cannot be used: a malformed file, an unknown id, a wrong shape or type."""

    exit_code = 3


class ShapeMismatch(InputError):
    """Arrays whose shapes do not fit each other."""


class ArtifactError(RerankerError):
    """A model folder that is missing, damaged, of an unknown format or outside the size limits."""

    exit_code = 5


class EncoderMismatch(ArtifactError):
    """Vectors, a store or an index made by another encoder than the model's."""


class TrainingError(RerankerError):
    """Training that cannot start (nothing to learn from) or that diverged beyond repair."""

    exit_code = 6


class GateRefused(RerankerError):
    """A model or an operation refused because a stated check failed; nothing was changed."""

    exit_code = 7


class FallbackError(RerankerError):
    """Reranking is given up for this search; ``reason`` is what the answer states."""

    def __init__(self, kind: ReasonKind, message: str) -> None:
        super().__init__(message, kind=kind)

    @property
    def reason(self) -> Reason:
        """Kind and message as one record."""
        return Reason(self.data["kind"], self.message)


class NothingToLearn(RerankerError):
    """A click log without what retraining needs: no click, no preference, or no newest slice to judge by."""

    exit_code = 9


class UnknownPerson(RerankerError):
    """Somebody to be forgotten of whom a click log has no row."""

    exit_code = 9


class PreflightRefused(GateRefused):
    """An index that cannot be re-vectorised safely; each reason is one sentence with its remedy."""

    def __init__(self, index: str, reasons: Sequence[str]) -> None:
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"index {index!r} was left untouched:{lines}", index=index, reasons=tuple(reasons))


class MissingExtra(RerankerError):
    """An optional library that is not installed; ``extra`` of this distribution brings it."""

    exit_code = 2

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"the module {module!r} is not installed; it belongs to the extra {extra!r}: "
            f"run  pip install 'ssi-reranker[{extra}]'",
            module=module,
            extra=extra,
        )


class EngineError(RerankerError):
    """A search engine that did not do what was asked.

    ``data`` carries ``engine`` (kind), ``status`` (HTTP status or None), ``error_type`` (the engine's own
    name of the error, or ""), and ``retry_after_s`` (float or None) where the engine sent one.
    """

    exit_code = 4

    @property
    def status(self) -> int | None:
        """HTTP status, or None where no answer came."""
        value = self.data.get("status")
        return value if isinstance(value, int) else None

    @property
    def error_type(self) -> str:
        """The engine's name of the error (``cluster_block_exception``), or an empty string."""
        return str(self.data.get("error_type") or "")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds the engine asked us to wait, or None."""
        value = self.data.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class EngineUnavailable(EngineError):
    """No usable answer: refused or reset connection, time-out, 502/503/504, or an answer cut in half."""

    @property
    def timed_out(self) -> bool:
        """True where the engine took longer than the request allowed."""
        return bool(self.data.get("timed_out"))

    @property
    def is_connection_failure(self) -> bool:
        """True if the engine could not be reached: there was no answer, and the request did not time out."""
        return self.status is None and not self.timed_out


class EngineAuthError(EngineError):
    """401 or 403 for lack of rights: stop, do not retry."""


class IndexMissing(EngineError):
    """The index or alias does not exist."""


class EngineOverloaded(EngineError):
    """429: the engine asks for fewer or later requests (or an index is blocked, see ``error_type``)."""


class EngineRejected(EngineError):
    """Any other 4xx: the request itself is not acceptable to the engine."""


class RequestTooLarge(EngineRejected):
    """413: send less at once."""


class VersionConflict(EngineError):
    """409: somebody else wrote the document since it was read."""


class Unsupported(EngineRejected):
    """A request this engine (or this build of it) cannot carry out; the message names what can."""
