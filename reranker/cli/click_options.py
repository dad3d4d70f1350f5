"""What the commands on click logs share: which logs are read, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reranker.cli.common import err

if TYPE_CHECKING:
    from reranker.clicks.log import ClickLog

F = TypeVar("F", bound=Callable[..., Any])

# Spelled out, so that --help needs no reader; a test keeps them equal to `reranker.clicks.reading.FORMATS`.
FORMATS = ("auto", "ubi", "json-lines", "metarank")
_FILE = click.Path(path_type=Path)

format_option = click.option(
    "--format", "log_format", type=click.Choice(FORMATS), default="auto", show_default=True,
    help="Form of raw log files; auto looks at their first lines.",
)  # fmt: skip
rejects_option = click.option(
    "--rejects", type=_FILE, metavar="FILE", help="Keep the place, reason and shape of bad lines here."
)
log_option = click.option(
    "--log", "log_folder", required=True, type=_FILE, metavar="DIR", help="Folder of the click log."
)
key_option = click.option(
    "--key", "key_file", type=_FILE, metavar="FILE",
    help="Key of the hashes of people's ids; without it, the file key in the click log's folder.",
)  # fmt: skip


def log_arguments(function: F) -> F:
    """Add ``LOG...``, ``--format`` and ``--rejects``; the function gets ``logs``, ``log_format`` and ``rejects``."""
    for decorate in (
        rejects_option,
        format_option,
        click.argument("logs", nargs=-1, required=True, type=_FILE, metavar="LOG..."),
    ):
        function = decorate(function)
    return function


@contextmanager
def opened(logs: tuple[Path, ...], log_format: str, rejects: Path | None) -> Iterator[ClickLog]:
    """Yield the click log of ``LOG...``, and say on standard error what could not be read.

    Raises
    ------
    InputError
        As `reranker.clicks.log.open_logs`.
    """
    from reranker.clicks.log import open_logs
    from reranker.formats import RejectLog

    with RejectLog(rejects) as sink:
        log = open_logs(logs, format=log_format, rejects=sink)
        if sink.count:
            err().print(f"[yellow]{sink.summary()}[/yellow]")
        yield log
