"""All errors that this project raises deliberately. A message contains the value, the rule and the remedy.

``exit_code`` of a class is the exit status of the command line for it. docs/reference.md lists them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from reranker.records import Reason, ReasonKind


class RerankerError(Exception):
    """Base class of all errors of this project.

    The message states what is wrong (with the value), the rule and the remedy. ``error.data`` contains the values.
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
    """A configuration key or value is invalid. The message lists the valid ones."""

    exit_code = 2


class InputError(RerankerError):
    """Input data cannot be used: a malformed file, an unknown id, a wrong shape or type."""

    exit_code = 3


class ShapeMismatch(InputError):
    """The shapes of arrays do not fit each other."""


class ArtifactError(RerankerError):
    """A model folder or vector store is missing, damaged, of an unknown format or outside the size limits."""

    exit_code = 5


class EncoderMismatch(ArtifactError):
    """Vectors, a store or an index belong to another encoder than that of the model."""


class TrainingError(RerankerError):
    """Training cannot start (there is nothing to learn from), or it diverged."""

    exit_code = 6


class GateRefused(RerankerError):
    """A model or an operation was refused because a check failed. Nothing was changed."""

    exit_code = 7


class FallbackError(RerankerError):
    """Reranking of this search stops, and the engine's order is used. The response contains ``reason``."""

    def __init__(self, kind: ReasonKind, message: str) -> None:
        super().__init__(message, kind=kind)

    @property
    def reason(self) -> Reason:
        """Kind and message as one record."""
        return Reason(self.data["kind"], self.message)


class NothingToLearn(RerankerError):
    """A click log has nothing that retraining needs: no click, no preference, or no newest part for the gate."""

    exit_code = 9


class UnknownPerson(RerankerError):
    """A click log has no row of the person to be removed."""

    exit_code = 9


class PreflightRefused(GateRefused):
    """An index cannot be revectorized safely. Each reason is one sentence with its remedy."""

    def __init__(self, index: str, reasons: Sequence[str]) -> None:
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"index {index!r} was not changed:{lines}", index=index, reasons=tuple(reasons))


class MissingExtra(RerankerError):
    """An optional library is not installed. The extra ``extra`` of this distribution installs it.

    The message has a command that installs it for the running interpreter, in a checkout from its folder.
    """

    exit_code = 2

    def __init__(self, module: str, extra: str) -> None:
        folder = Path(__file__).resolve().parents[1]
        package = str(folder) if (folder / "pyproject.toml").is_file() else "ssi-reranker"
        command = shlex.join([sys.executable, "-m", "pip", "install", f"{package}[{extra}]"])
        super().__init__(
            f"the module {module!r} is not installed; it belongs to the extra {extra!r}: run  {command}",
            module=module,
            extra=extra,
        )


class EngineError(RerankerError):
    """A request to a search engine failed.

    ``data`` contains ``engine`` (kind), ``status`` (HTTP status or None), ``error_type`` (the engine's own name of the
    error, or ""), ``engine_reason`` (the engine's own sentence, or absent), and ``retry_after_s`` (float or None).
    """

    exit_code = 4

    @property
    def status(self) -> int | None:
        """HTTP status; None if there was no response."""
        value = self.data.get("status")
        return value if isinstance(value, int) else None

    @property
    def error_type(self) -> str:
        """The engine's name of the error (``cluster_block_exception``), or an empty string."""
        return str(self.data.get("error_type") or "")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait according to the engine (``Retry-After``), or None."""
        value = self.data.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class EngineUnavailable(EngineError):
    """No usable response: a refused or reset connection, a timeout, 502/503/504, or a truncated response."""

    @property
    def timed_out(self) -> bool:
        """True if the request timed out."""
        return bool(self.data.get("timed_out"))

    @property
    def is_connection_failure(self) -> bool:
        """True if the engine could not be reached: there was no response, and the request did not time out."""
        return self.status is None and not self.timed_out


class EngineAuthError(EngineError):
    """401 or 403: privileges are missing. Do not retry."""


class IndexMissing(EngineError):
    """The index or alias does not exist."""


class EngineOverloaded(EngineError):
    """429: the engine is overloaded (or an index is blocked, see ``error_type``). Send less, or retry later."""


class EngineRejected(EngineError):
    """Any other 4xx: the engine refuses the request itself."""


class RequestTooLarge(EngineRejected):
    """413: the request is too large. Send less at a time."""


class VersionConflict(EngineError):
    """409: the document was changed since it was read."""


class Unsupported(EngineRejected):
    """The engine (or this build of it) does not support a request. The message names an alternative."""
