"""What the commands share: options, progress on standard error, results on standard output, errors to exit codes."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from reranker.errors import RerankerError

if TYPE_CHECKING:
    from reranker.engines.base import Engine

F = TypeVar("F", bound=Callable[..., Any])
Update = Callable[[int, int | None], None]
"""``update(done, total)``; a total of None keeps the one known."""

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "unexpected failure",
    2: "wrong usage: option, configuration key or a missing extra",
    3: "input data that cannot be used",
    4: "the search engine did not do what was asked",
    5: "model folder or vector store missing, damaged or of another encoder",
    6: "training could not start, or diverged",
    7: "refused by a check; nothing was changed",
    8: "done, but some documents were rejected (see the reject file)",
    9: "no data: the click log holds nothing to learn from; nothing was changed",
    130: "interrupted; resumable commands continue where they stopped",
}
"""Process exit statuses, shown in the README and in ``ssi --help``."""

EXIT_REJECTS = 8
LOG_INTERVAL_S = 10.0


def out() -> Console:
    """Return the console of results (standard output), as wide as the terminal or 120 columns in a pipe."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=False)


def err() -> Console:
    """Return the console of progress and messages (standard error)."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def print_json(value: Any, file: IO[str] | None = None) -> None:
    """Print one JSON document: UTF-8, keys in the order given, two spaces of indentation."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False), file=file)


class _Rate(ProgressColumn):
    """Units a second since the task began."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="progress.data.speed")


@contextlib.contextmanager
def progress(
    title: str, total: int | None = None, unit: str = "documents"
) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback ``update(done, total)`` that shows progress on standard error.

    A bar with rate and remaining time on a terminal; a line every ten seconds elsewhere.
    """
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(unit), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=err(), transient=False) as bar:
            task = bar.add_task(title, total=total)

            def show(done: int, new_total: int | None = None) -> None:
                bar.update(task, completed=done, total=new_total or total)

            yield show
        return
    started = last = time.monotonic()

    def update(done: int, new_total: int | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LOG_INTERVAL_S:
            return
        last = now
        rate = done / max(now - started, 1e-9)
        goal = new_total or total
        rest = f" of {goal:,}, {max(goal - done, 0) / max(rate, 1e-9):,.0f} s left" if goal else ""
        click.echo(f"{title}: {done:,}{rest} ({rate:,.0f} {unit}/s)", err=True)

    yield update


def engine_options(function: F) -> F:
    """Add ``--engine`` and ``--index``."""
    function = click.option("--index", "index", required=True, metavar="NAME", help="Index (or alias) in the engine.")(
        function
    )
    return click.option(
        "--engine",
        "engine_spec",
        required=True,
        metavar="SPEC",
        help="tantivy:PATH (embedded), elasticsearch:URL or opensearch:URL. "
        "Credentials come from SSI_ENGINE_USER, SSI_ENGINE_PASSWORD, SSI_ENGINE_API_KEY or the [engine] table.",
    )(function)


def model_option(required: bool = True) -> Callable[[F], F]:
    """Add ``--model``, the folder that `ssi train` wrote."""
    return click.option(
        "--model",
        "model_path",
        required=required,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Model folder written by `ssi train`.",
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")


def open_engine_of(context: click.Context, spec: str) -> Engine:
    """Return the engine of ``--engine``, with the settings of the ``[engine]`` table and the environment.

    The engine is closed when the command ends.
    """
    from reranker.engines import EngineSettings, open_engine

    table = dict((context.find_root().obj or {}).get("engine", {}))
    engine = open_engine(spec, EngineSettings.from_environment(table=table))
    context.call_on_close(engine.close)
    return engine


class ErrorHandlingGroup(click.Group):
    """A command group that turns every expected error into one clear message and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; expected errors become a message and an exit status."""
        try:
            return super().invoke(ctx)
        except RerankerError as error:
            _fail(f"{error}", error.exit_code)
        except BrokenPipeError:
            # The reader of our output (head, less) has what it wanted.
            sys.stderr.close()
            sys.exit(0)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                _fail(f"no space left on the device of {error.filename or 'the output'}: free some and run again", 1)
            _fail(f"{error.filename or 'file'}: {error.strerror or error}", 3)
        except KeyboardInterrupt:
            _fail("interrupted; resumable commands continue where they stopped when run again", 130)
        except MemoryError:
            _fail("not enough memory: use fewer dimensions (--dim), fewer words (--max-words) or a smaller batch", 1)


def _fail(message: str, code: int) -> None:
    """Print the message on standard error and end the process with the code."""
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    sys.exit(code)
