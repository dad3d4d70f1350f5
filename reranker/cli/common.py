"""What the commands share: groups, options, progress on standard error, results on standard output, exit statuses."""

from __future__ import annotations

import difflib
import importlib.util
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from reranker.config import DEFAULT_ROUTE, ROUTES, STORED_ROUTES, default_of
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.engines.retry import Retries
from reranker.errors import ConfigError, MissingExtra
from reranker.progress import Progress, TitledProgress
from reranker.releases import default_store
from reranker.rerank.settings import RETRIEVALS, RerankSettings

F = TypeVar("F", bound=Callable[..., Any])

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
    9: "no data: the click log holds nothing to learn from, or nobody of that id; nothing was changed",
    130: "interrupted; resumable commands continue where they stopped",
}
"""Process exit statuses, shown in the README and in ``ssi --help``."""

EXIT_REJECTS = 8
LOG_INTERVAL_S = 10.0
_UNITS = {
    "training short queries": "steps",
    "trying settings": "epochs",
    "training": "steps",
    "scoring shown documents": "queries",
}


# Groups of commands


class CommandGroup(click.Group):
    """A group that lists its commands in order; variables of options are called by ``variables`` and the option."""

    def __init__(self, *, variables: str = "SSI", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.variables = variables

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in order."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; the error for an unknown one names those spelt nearly like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not close or args[0].startswith("-"):
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(close)}?", ctx) from error

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; its options get their variables."""
        super().add_command(cmd, name)
        for option in options_of(cmd):
            variable = f"{self.variables}_{name or cmd.name}_{option_key(option)}"
            option.envvar = option.envvar or variable.replace("-", "_").upper()


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command."""
    return [option for option in command.params if isinstance(option, click.Option) and option.name]


def option_key(option: click.Option) -> str:
    """Return the configuration key of an option: ``--max-docs`` → ``max_docs``."""
    return option.opts[0].lstrip("-").replace("-", "_")


def stated(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass, by their names."""
    return {part.name: options[part.name] for part in fields(cls) if part.name in options}


def need_modules(extra: str, *names: str) -> None:
    """Raise `MissingExtra` where a library of an extra is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(name, extra)


def setting(settings: type, name: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option for a field of a dataclass of settings: its default and legal values are those of the field.

    Parameters
    ----------
    settings : type
        The dataclass; its ``RANGES`` hold the legal values of numbers.
    name : str
        The field, and by default the option: ``max_norm`` is ``--max-norm``.
    *names : str
        Another spelling of the option, or another name of its parameter, as `click.option` takes them.
    **attributes
        What else `click.option` takes, such as ``help``; never a default.
    """
    kinds = str(settings.__dataclass_fields__[name].type).split(" | ")  # type: ignore[attr-defined]
    option = () if any(each.startswith("--") for each in names) else (f"--{name.replace('_', '-')}",)
    if "type" not in attributes and "bool" not in kinds:
        attributes["type"] = _type_of(kinds, getattr(settings, "RANGES", {}).get(name))
    if "bool" in kinds and not any("/" in each for each in names):
        attributes["is_flag"] = True
    return click.option(*option, *names, default=default_of(settings, name), **attributes)


def _type_of(kinds: list[str], interval: str | None) -> click.ParamType[Any]:
    """Return the type of an option for a field of these types; an interval is as `check_ranges` takes it."""
    if not {"int", "float"} & {*kinds}:
        return click.STRING
    whole = "int" in kinds
    if interval is None:
        return click.INT if whole else click.FLOAT
    low, high = (None if math.isinf(float(end)) else float(end) for end in interval[1:-1].split(","))
    is_open = {"min_open": interval[0] == "(", "max_open": high is not None and interval[-1] == ")"}
    if not whole:
        return click.FloatRange(low, high, **is_open)
    return click.IntRange(None if low is None else int(low), None if high is None else int(high), **is_open)


def renamed_option(old: str, new: str, *, kind: click.ParamType[Any]) -> Callable[[F], F]:
    """Add the former name of an option, hidden: its value becomes that of the new one, with a note on standard error.

    The new name wins where both are given. The former name stays for one version.
    """
    key = new.lstrip("-").replace("-", "_")

    def hand_over(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value is None:
            return
        warn(f"note: {old} is called {new} now; the old name will be removed in the next version")
        target = next(each for each in options_of(context.command) if option_key(each) == key)
        context.default_map = {**(context.default_map or {}), str(target.name): value}

    name = f"former_{old.lstrip('-')}"
    return click.option(
        old,
        name,
        type=kind,
        help=f"Former name of {new}.",
        hidden=True,
        is_eager=True,
        expose_value=False,
        callback=hand_over,
    )


# Options of several commands

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
ROUTE = click.Choice(ROUTES)


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds several options, in the order of ``--help``."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


engine_options = all_of(
    click.option(
        "--engine",
        "engine_spec",
        required=True,
        metavar="SPEC",
        help="tantivy:PATH (embedded), elasticsearch:URL or opensearch:URL. "
        "Credentials come from SSI_ENGINE_USER, SSI_ENGINE_PASSWORD, SSI_ENGINE_API_KEY or the [engine] table.",
    ),
    click.option("--index", "index", required=True, metavar="NAME", help="Index (or alias) in the engine."),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
body_option = click.option(
    "--body",
    "body_path",
    type=FILE,
    help="Search body (JSON) with {{query}} in it.  [default: BM25 over the model's text fields]",
)
window_option = setting(RerankSettings, "window", help="Hits reranked.")
read_store_option = click.option(
    "--store",
    "store_path",
    type=FOLDER,
    metavar="DIR",
    help="Store of route beside.  [default: the one `ssi index --write-store default` writes]",
)
neighbours_option = setting(RerankSettings, "neighbours", help="Documents that `--retrieve hybrid` asks for.")
alpha_option = setting(RerankSettings, "alpha", help="Weight of the model.  [default: as `ssi calibrate` fitted it]")
keep_top_option = setting(RerankSettings, "keep_top", help="First hits that never move.")
RETRIEVE = click.Choice(RETRIEVALS)


class _ChoiceList(click.Choice[str]):
    """Some of the choices, with commas between them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return ",".join(super(_ChoiceList, self).convert(part.strip(), param, ctx) for part in value.split(","))


def _parts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for value in values for part in value.split(",")))


routes_option = click.option(
    "--routes",
    type=_ChoiceList(STORED_ROUTES),
    multiple=True,
    default=(DEFAULT_ROUTE,),
    callback=_parts,
    help="Fields stored for the model: one, or several with commas between them.",
)
write_store_option = all_of(
    click.option(
        "--write-store",
        "store",
        metavar="DIR",
        help="Also write the local store of route `beside`: a folder, or `default`.",
    ),
    renamed_option("--store", "--write-store", kind=click.STRING),
)
id_field_option = click.option(
    "--id-field",
    metavar="FIELD",
    help="Where a document of the file has its id, such as sku or product.sku.  [default: id or _id]",
)


def check_id_field(options: dict[str, Any]) -> None:
    """Leave the configuration's ``id_field`` out where no file is given: documents of an index are named by its ids.

    `ConfigError` where ``--id-field`` itself was given.
    """
    if options["docs"] is None and options["id_field"]:
        if click.get_current_context().get_parameter_source("id_field") is not ParameterSource.DEFAULT_MAP:
            raise ConfigError(
                "--id-field is for a file of documents: give --docs; those of an index are named by their _id"
            )
        options["id_field"] = None


def model_option(required: bool = True) -> Callable[[F], F]:
    """Add ``--model``, the folder that `ssi train` wrote."""
    return click.option(
        "--model",
        "model_path",
        required=required,
        type=PATH,
        metavar="DIR",
        help="Model folder written by `ssi train`.",
    )


def open_engine_of(spec: str, *, retry: bool = False) -> Engine:
    """Return the engine of ``--engine``, by the ``[engine]`` table and the environment; the command's end closes it.

    With ``retry``, for commands that run long, requests that failed are sent again, which is shown as a warning.
    """
    retries = Retries(rng=random.Random(), notice=warn) if retry else None  # noqa: S311 - of pauses
    engine = open_engine(spec, engine_settings(), retries)
    click.get_current_context().call_on_close(engine.close)
    return engine


def engine_settings() -> EngineSettings | None:
    """Return the settings of the ``[engine]`` table and the environment; None where there is no such table."""
    table = (click.get_current_context().find_root().obj or {}).get("engine")
    return EngineSettings.from_environment(table=table) if table else None


def store_path_of(option: str | None, model_path: Path | None, engine: Engine, index: str) -> Path | None:
    """Return the folder that ``--write-store`` names, by ``default`` that of this model and index; else None."""
    if option is None or model_path is None:
        return None
    return default_store(model_path, engine.spec, index) if option == "default" else Path(option)


# Results on standard output, messages and progress on standard error


def out() -> Console:
    """Return the console of results (standard output), as wide as the terminal or 120 columns in a pipe."""
    width = None if sys.stdout.isatty() else 120
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, soft_wrap=False)


_bar_consoles: list[Console] = []
"""Consoles with a progress bar, the one shown last: only what it prints itself stands above the bar."""


def err() -> Console:
    """Return the console of progress and messages (standard error)."""
    return (
        _bar_consoles[-1]
        if _bar_consoles
        else Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=not sys.stderr.isatty())
    )


def say(text: str) -> None:
    """Print a message on standard error, above the progress bar where one is shown."""
    err().print(text, markup=False)


def warn(text: str) -> None:
    """Print a message that the reader should not miss on standard error."""
    err().print(text, style="yellow", markup=False)


def print_json(value: Any) -> None:
    """Print one JSON document: UTF-8, keys in the order given, two spaces of indentation."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def plain_table(*headings: str, numbers: tuple[int, ...] = ()) -> Table:
    """Return a table without lines; the columns named in ``numbers`` are justified to the right."""
    table = Table(*headings, box=None, pad_edge=False)
    for column in numbers:
        table.columns[column].justify = "right"
    return table


class _Rate(ProgressColumn):
    """Units a second since the task began."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s", style="progress.data.speed")


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "documents") -> Iterator[Progress]:
    """Yield a callback that shows progress: a bar on a terminal, else a line every ten seconds, anew a pass."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(unit),
            TimeRemainingColumn(),
        )
        with ExitStack() as stack:
            bar = stack.enter_context(ProgressBar(*columns, console=err(), transient=False))
            _bar_consoles.append(bar.console)
            stack.callback(_bar_consoles.pop)
            task = bar.add_task(title, total=total)

            def show(done: int, new_total: int | None = None) -> None:
                if done < bar.tasks[0].completed:
                    bar.reset(task)
                bar.update(task, completed=done, total=new_total or total)

            yield show
        return
    before = 0
    started = last = time.monotonic()

    def update(done: int, new_total: int | None = None) -> None:
        nonlocal last, started, before
        now = time.monotonic()
        if done < before:
            started = now
        before = done
        if now - last < LOG_INTERVAL_S or now == started:  # a pass that begins has no rate yet
            return
        last = now
        rate = done / max(now - started, 1e-9)
        goal = new_total or total
        rest = f" of {goal:,}, {max(goal - done, 0) / max(rate, 1e-9):,.0f} s left" if goal else ""
        click.echo(f"{title}: {done:,}{rest} ({rate:,.0f} {unit}/s)", err=True)

    yield update


@contextmanager
def stage_progress(unit: str = "documents") -> Iterator[TitledProgress]:
    """Yield a callback ``update(stage, done, total)`` that shows one bar at a time: that of the stage at work."""
    title = ""
    show: Progress
    with ExitStack() as stack:

        def update(stage: str, done: int, total: int | None) -> None:
            nonlocal title, show
            if stage != title:
                stack.close()
                title, show = stage, stack.enter_context(progress(stage, total, _UNITS.get(stage, unit)))
            show(done, total)

        yield update
