"""Code shared by the commands: groups, options, progress (standard error), results (standard output), exit statuses."""

from __future__ import annotations

import difflib
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from reranker.accounts import MAX_UNKNOWN, InputAccount, check_unknown
from reranker.cli.removed import refuse_removed, refuse_removed_command, refuse_removed_value
from reranker.config import DEFAULT_ROUTE, IMPACT_BOOST, IMPACT_MODES, ROUTES, default_of
from reranker.engines import Engine, EngineSettings, open_engine
from reranker.engines.retry import Retries
from reranker.errors import ConfigError
from reranker.progress import Progress, RunProgress, TitledProgress
from reranker.records import is_relevant
from reranker.releases import default_store
from reranker.rerank.settings import RETRIEVALS, RerankSettings

F = TypeVar("F", bound=Callable[..., Any])

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "unexpected failure",
    2: "wrong usage: an invalid option or configuration key, or a missing extra",
    3: "the input data cannot be used",
    4: "a request to the search engine failed",
    5: "the model folder or vector store is missing, damaged or belongs to another encoder",
    6: "training could not start, or diverged",
    7: "a check refused the change; nothing was changed",
    8: "done, but a part of the input was left out: rejected lines or documents, or records with unknown ids",
    9: "no data: the click log has nothing to learn from, or no row of the given id; nothing was changed",
    130: "interrupted; a resumable command continues when you run it again",
}
"""Process exit statuses, shown in the README and in ``ssi --help``."""

EXIT_REJECTS = 8
LOG_INTERVAL_S = 10.0
_UNITS = {
    "training short queries": "steps",
    "trying settings": "epochs",
    "training": "steps",
    "comparing forms": "folds",
    "scoring shown documents": "queries",
}


# Groups of commands


class CommandGroup(click.Group):
    """A group that lists its commands in the order of definition.

    Each option has the environment variable ``{variables}_{COMMAND}_{OPTION}``.
    """

    groups: ClassVar[tuple[str, ...]] = ()
    """Names of its commands that are groups; the error for an unknown name suggests commands of these."""

    def __init__(self, *, variables: str = "SSI", **attributes: Any) -> None:
        super().__init__(**attributes)
        self.variables = variables

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in order."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. The error for an unknown name suggests commands with a similar spelling.

        Raises `ConfigError` for a command that was removed, and for a removed option, on the command line or in the
        environment.
        """
        path = f"{self.name} {args[0]}" if ctx.parent else args[0]
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            refuse_removed_command(path)
            close = self._inside(ctx, args[0]) or difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not close or args[0].startswith("-"):
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(close)}?", ctx) from error
        given = takewhile(lambda arg: arg != "--", args[1:])
        refuse_removed(path, (arg.partition("=")[0] for arg in given if arg.startswith("--")))
        prefix = f"SSI_{path.upper().replace(' ', '_')}_"
        for variable in sorted(name for name in os.environ if name.startswith(prefix)):
            refuse_removed(path, [variable.removeprefix(prefix).lower()], f"environment variable {variable}")
        return found

    def _inside(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands of this name in the groups of this group, such as ``clicks doctor`` for ``doctor``."""
        groups = {each: self.get_command(ctx, each) for each in self.groups}
        return [
            f"{each} {name}"
            for each, group in groups.items()
            if isinstance(group, click.Group) and name in group.commands
        ]

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command and assign environment variables to its options."""
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
    """Return those options that are fields of the dataclass ``cls``: name → value."""
    return {part.name: options[part.name] for part in fields(cls) if part.name in options}


def confirm(question: str) -> None:
    """Ask a yes-or-no question on the terminal, and stop if the answer is no; `ConfigError` if nobody can answer."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can answer, because standard input is not a terminal: give --yes")
    click.confirm(question, abort=True, err=True)


def setting(settings: type, name: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option for a field of a settings dataclass. The option takes its default and valid range from the field.

    Parameters
    ----------
    settings : type
        The dataclass. Its ``RANGES`` hold the valid ranges of the numbers.
    name : str
        Name of the field. The name of the option is derived from it by default: ``max_norm`` gives ``--max-norm``.
    *names : str
        Another name of the option or of its parameter, as in `click.option`.
    **attributes
        Other arguments of `click.option`, such as ``help``, but not ``default``.
    """
    kinds = str(settings.__dataclass_fields__[name].type).split(" | ")  # type: ignore[attr-defined]
    option = () if any(each.startswith("--") for each in names) else (f"--{name.replace('_', '-')}",)
    if "type" not in attributes and "bool" not in kinds:
        attributes["type"] = _type_of(kinds, getattr(settings, "RANGES", {}).get(name))
    if "bool" in kinds and not any("/" in each for each in names):
        attributes["is_flag"] = True
    return click.option(*option, *names, default=default_of(settings, name), **attributes)


def _type_of(kinds: list[str], interval: str | None) -> click.ParamType[Any]:
    """Return the click type for a field of these types. ``interval`` has the form that `check_ranges` takes."""
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
    """Add the former name of an option as a hidden option.

    Its value is passed on to the new option, with a note on standard error. If both are given, the new name wins. The
    former name is supported for one version.
    """
    key = new.lstrip("-").replace("-", "_")

    def hand_over(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value is None:
            return
        warn(f"note: {old} is now called {new}; the old name will be removed in the next version")
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
window_option = setting(RerankSettings, "window", help="Number of hits to rerank.")
read_store_option = click.option(
    "--store",
    "store_path",
    type=FOLDER,
    metavar="DIR",
    help="Local store for route `beside`.  [default: the one that `ssi index --write-store default` writes]",
)
mode_option = setting(
    RerankSettings,
    "mode",
    type=click.Choice(IMPACT_MODES),
    help="Impacts: `find`: documents that only the impacts find are hits too; `reorder`: the hits stay those of the "
    "body.",
)
boost_option = setting(
    RerankSettings,
    "boost",
    help="Weight of impacts next to the body's own score.  [default: the value fitted by `ssi calibrate --route "
    f"impacts`, or {IMPACT_BOOST:g}]",
)
alpha_option = setting(
    RerankSettings, "alpha", help="Weight of the model, from 0 to 1.  [default: the value fitted by `ssi calibrate`]"
)


class RemovingChoice(click.Choice[str]):
    """One of the choices; a value that was removed gives its successor."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the choice. Raises `ConfigError` for a value that was removed."""
        if param is not None:
            refuse_removed_value(param.opts[0], value)
        return super().convert(value, param, ctx)


class _ChoiceList(RemovingChoice):
    """One or more of the choices, separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return ",".join(super(_ChoiceList, self).convert(part.strip(), param, ctx) for part in value.split(","))


RETRIEVE = RemovingChoice(RETRIEVALS)
ROUTE = RemovingChoice(ROUTES)


def _parts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for value in values for part in value.split(",")))


routes_option = click.option(
    "--routes",
    type=_ChoiceList(ROUTES),
    multiple=True,
    default=(DEFAULT_ROUTE,),
    callback=_parts,
    help="Routes whose fields are stored for the model: one, or several separated by commas.",
)
write_store_option = all_of(
    click.option(
        "--write-store",
        "store",
        metavar="DIR",
        help="Also write the local store of route `beside` to this folder, or to `default`.",
    ),
    renamed_option("--store", "--write-store", kind=click.STRING),
)
id_field_option = click.option(
    "--id-field",
    metavar="FIELD",
    help="Field of a document that holds its id, such as sku or product.sku.  [default: id or _id]",
)


def check_id_field(options: dict[str, Any]) -> None:
    """Drop the configuration's ``id_field`` if no file of documents is given: documents of an index have its ``_id``.

    Raises `ConfigError` if ``--id-field`` was given on the command line.
    """
    if options["docs"] is None and options["id_field"]:
        if click.get_current_context().get_parameter_source("id_field") is not ParameterSource.DEFAULT_MAP:
            raise ConfigError(
                "--id-field applies to a file of documents, and documents of an index are identified by _id: "
                "give --docs, or leave --id-field out"
            )
        options["id_field"] = None


def model_option(required: bool = True) -> Callable[[F], F]:
    """Add the option ``--model``, a folder that `ssi train` wrote."""
    return click.option(
        "--model",
        "model_path",
        required=required,
        type=PATH,
        metavar="DIR",
        help="Model folder written by `ssi train`.",
    )


def open_engine_of(spec: str, *, retry: bool = False) -> Engine:
    """Open the engine of ``--engine`` with the settings of the ``[engine]`` table and the environment.

    The engine is closed when the command ends. With ``retry``, which long-running commands set, failed requests are
    sent again, and each retry is shown as a warning.
    """
    retries = Retries(rng=random.Random(), notice=warn) if retry else None  # noqa: S311 - only jitters pauses
    engine = open_engine(spec, engine_settings(), retries)
    click.get_current_context().call_on_close(engine.close)
    return engine


def engine_settings() -> EngineSettings | None:
    """Return the settings of the ``[engine]`` table and the environment; None if there is no such table."""
    table = (click.get_current_context().find_root().obj or {}).get("engine")
    return EngineSettings.from_environment(table=table) if table else None


def store_path_of(option: str | None, model_path: Path | None, engine: Engine, index: str) -> Path | None:
    """Return the folder of ``--write-store``; None if it is not given.

    The value ``default`` stands for the default folder of this model and index.
    """
    if option is None or model_path is None:
        return None
    return default_store(model_path, engine.spec, index) if option == "default" else Path(option)


def partial_option(what: str) -> Callable[[F], F]:
    """Add the option ``--allow-partial`` of a command; ``what`` are the records that it reads."""
    text = f"Continue even if more than half of the {what} have unknown ids of documents or queries."
    return click.option("--allow-partial", is_flag=True, help=text)


def check_ids(account: InputAccount, options: Mapping[str, Any]) -> None:
    """Warn of records with unknown ids, or refuse them if they are too many and ``--allow-partial`` is not given."""
    advice = (
        "check that the ids belong to these documents (of the index, or of --docs by --id-field) and queries "
        "(--query-file), or give --allow-partial to use the rest"
    )
    check_unknown(account, advice, None if options["allow_partial"] else MAX_UNKNOWN, warn)


def end_with_accounts(*accounts: InputAccount) -> None:
    """Print the accounts of the input on standard error, except empty ones.

    Exit with status 8 if a part of the input was left out for a fault.
    """
    for account in accounts:
        if not account.given:
            continue
        (warn if account.has_faults else say)(account.sentence)
    if any(account.has_faults for account in accounts):
        click.get_current_context().exit(EXIT_REJECTS)


# Results on standard output, messages and progress on standard error


def out() -> Console:
    """Return the console for results (standard output). It is as wide as the terminal, or 120 columns in a pipe."""
    width = None if sys.stdout.isatty() else 120
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, soft_wrap=False)


_bar_consoles: list[Console] = []
"""Consoles that show a progress bar, the newest last. Messages must go through them to appear above the bar."""


def err() -> Console:
    """Return the console for progress and messages (standard error)."""
    return (
        _bar_consoles[-1]
        if _bar_consoles
        else Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=not sys.stderr.isatty())
    )


def say(text: str) -> None:
    """Print a message on standard error, above the progress bar if one is shown."""
    err().print(text, markup=False)


def say_relevant(judged: Iterable[Mapping[str, float]]) -> None:
    """Report how many judgments, given as document -> grade of each query, count as relevant."""
    grades = [grade for of_query in judged for grade in of_query.values()]
    n_relevant = sum(is_relevant(grade) for grade in grades)
    say(f"relevant by a grade above 0: {n_relevant:,} of {len(grades):,} judgments")


def warn(text: str) -> None:
    """Print a warning on standard error, highlighted."""
    err().print(text, style="yellow", markup=False)


def print_json(value: Any) -> None:
    """Print one JSON document in UTF-8. Keys keep their order; the indentation is two spaces."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def plain_table(*headings: str, numbers: tuple[int, ...] = ()) -> Table:
    """Return a table without lines. The columns with the indices in ``numbers`` are right-aligned."""
    table = Table(*headings, box=None, pad_edge=False)
    for column in numbers:
        table.columns[column].justify = "right"
    return table


class _Rate(ProgressColumn):
    """Average rate since the task began, in units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_rounded(speed)} {self.unit}/s", style="progress.data.speed")


_STAGE_WIDTH = len("learning: training short queries")
"""Characters of a stage's name, so that the bar stays in its place."""


class _RunBar(ProgressBar):
    """One bar over all stages of a run. It moves with the clock as well, so its values are read at each refresh."""

    def __init__(self, run: RunProgress, console: Console) -> None:
        self._run = run
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _TimeLeft(run))
        super().__init__(*columns, console=console, transient=False)
        self.add_task("", total=1.0)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar, with the current values."""
        for task in self.task_ids:
            self.update(task, description=f"{self._run.stage:<{_STAGE_WIDTH}}", completed=self._run.share())
        yield from super().get_renderables()


class _TimeLeft(ProgressColumn):
    """Estimated time to the end of a run: 1:05."""

    def __init__(self, run: RunProgress) -> None:
        super().__init__()
        self._run = run

    def render(self, task: Task) -> Text:
        seconds = self._run.seconds_left()
        left = "" if seconds is None else f"{seconds // 60:.0f}:{int(seconds % 60):02d} left"
        return Text(left, style="progress.remaining")


def _rounded(rate: float) -> str:
    """Return a rate with the digits that matter: 0.031, 4.2, 1,250."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "documents") -> Iterator[Progress]:
    """Yield a callback that shows progress: a bar on a terminal, otherwise a line every ten seconds.

    A count lower than the last one starts another pass, which the title numbers, so that the progress of a pass never
    runs backwards. The rate is measured again from there.
    """
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
            task, bar_pass = bar.add_task(title, total=total), 1

            def show(done: int, new_total: int | None = None) -> None:
                nonlocal bar_pass
                if done < bar.tasks[0].completed:
                    bar_pass += 1
                    bar.reset(task, description=f"{title} (pass {bar_pass})")
                bar.update(task, completed=done, total=new_total or total)

            yield show
        return
    before, number = 0, 1
    started = last = time.monotonic()

    def update(done: int, new_total: int | None = None) -> None:
        nonlocal last, started, before, number
        now = time.monotonic()
        if done < before:
            started, number = now, number + 1
        before = done
        if now - last < LOG_INTERVAL_S or now == started:  # at the start of a pass, the rate is not known yet
            return
        last = now
        rate = done / max(now - started, 1e-9)
        goal = new_total or total
        rest = f" of {goal:,}, {max(goal - done, 0) / max(rate, 1e-9):,.0f} s left" if goal else ""
        name = title if number == 1 else f"{title} (pass {number})"
        click.echo(f"{name}: {done:,}{rest} ({_rounded(rate)} {unit}/s)", err=True)

    yield update


@contextmanager
def stage_progress(unit: str = "documents") -> Iterator[TitledProgress]:
    """Yield a callback ``update(stage, done, total)`` that shows one bar at a time, for the current stage."""
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


@contextmanager
def run_progress() -> Iterator[tuple[TitledProgress, RunProgress]]:
    """Yield the callback for counts and the progress of a run: one bar for all stages on a terminal.

    Without a terminal, the lines are those of `stage_progress`.
    """
    run = RunProgress()
    if not sys.stderr.isatty():
        with stage_progress() as update:
            yield update, run
        return
    with ExitStack() as stack:
        bar = stack.enter_context(_RunBar(run, err()))
        _bar_consoles.append(bar.console)
        stack.callback(_bar_consoles.pop)
        yield run.update, run
        run.end()
