"""The ``ssi`` command. It loads the subcommands, reads the configuration file and maps errors to exit statuses."""

from __future__ import annotations

import errno
import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from reranker.cli import common
from reranker.cli.removed import refuse_removed, refuse_removed_command
from reranker.config import read_config, reject_unknown
from reranker.engines import EngineSettings, absolute_spec
from reranker.errors import MissingExtra, RerankerError

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "demo": "Try it: the documentation of the installed Python, embedded engine, two minutes.",
        "init": "Examine an existing index and write a configuration to begin with.",
        "train": "Train a model on documents and links, judgments or preference pairs.",
        "index": "Send documents, with their vectors, to an engine.",
        "search": "Search an index and rerank the hits.",
        "serve": "Serve search with reranking, and rerank APIs, over HTTP.",
    },
    "Operate": {
        "calibrate": "Fit the weights of the model and of the engine's own score.",
        "revectorize": "Add the vectors of a model to the documents of an existing index.",
        "sync": "Find documents whose vector is missing or stale, and compute it again.",
        "embed": "Compute the vectors of documents by a text encoder, for those who have none.",
        "vectorize": "Compute the vectors of a large collection in advance.",
        "impacts": "Print the search body in which the engine adds up learned words.",
        "versions": "List the model versions of an index, and which one is live.",
        "promote": "Make a version live.",
        "rollback": "Make the previously live version live again.",
        "gc": "Remove the fields of versions that are no longer needed.",
        "uninstall": "Remove everything that ssi added to an index.",
    },
    "Clicks": {
        "clicks": "Store click logs without personal data, check or simulate them, turn them into preference pairs.",
        "retrain": "Train a new model on clicks; it goes live only if it is better.",
        "interleave": "Compare two model versions by clicks on interleaved result lists.",
    },
    "Inspect": {
        "evaluate": "Rank every document and compare the model with lexical baselines.",
        "drift": "Report how far an index has moved from what its model was trained on.",
        "words": "Inspect a model: nearest words, and words related to a query.",
    },
    "Research": {
        "reproduce": "Run the experiments of the papers with all their systems and compare the results.",
    },
}
"""Commands by group: name → the line that ``ssi --help`` shows. Each command is defined in the module of its name."""

COMMANDS: dict[str, str] = {name: text for group in GROUPS.values() for name, text in group.items()}
"""All commands: name → help line, in the order of ``ssi --help``."""

EXTRAS = {"reproduce": "papers"}
"""Commands that other packages provide as entry points: name → the extra that must be installed."""

DEFAULTS = ("engine", "index", "model", "body", "id_field")
"""Keys of the table ``[default]``. They apply to every command that has such an option, except `NO_DEFAULTS`."""

NO_DEFAULTS = ("clicks", "demo", "init", "interleave")
"""Commands that ignore ``[default]``: they use an index of their own, or would read the engine's logs, not files."""

CONFIG = Path("ssi.toml")
"""Configuration file that is read if it exists and ``--config`` is not given. `ssi init` writes it."""

ENTRY_POINTS = "ssi.commands"
"""Entry point group of the commands in `EXTRAS`."""


class MainGroup(common.CommandGroup):
    """The group of all commands. A command is imported on first use, so that ``--help`` loads no heavy library."""

    groups = ("clicks", "interleave", "words")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name; None if there is no such command."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            load = _command_of_package if cmd_name in EXTRAS else _command
            self.add_command(load(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit statuses and the examples."""
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), meaning) for code, meaning in common.EXIT_CODES.items()])
        with formatter.section("Examples"):
            formatter.write_text("ssi demo")
            formatter.write_text("ssi train --docs docs.jsonl --links links.tsv --model model/")
            formatter.write_text("ssi COMMAND --help")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Expected errors are printed as one message, and the process exits with their status."""
        try:
            return super().invoke(ctx)
        except RerankerError as error:
            _fail(f"{error}", error.exit_code)
        except BrokenPipeError:
            # The program that reads our output (head, less) has closed the pipe: that is no error.
            sys.stderr.close()
            sys.exit(0)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                _fail(f"no space left on the device of {error.filename or 'the output'}: free some and run again", 1)
            _fail(f"{error.filename or 'file'}: {error.strerror or error}", 3)
        except KeyboardInterrupt:
            _fail("interrupted; resumable commands continue where they stopped when run again", 130)
        except MemoryError:
            _fail("not enough memory: use fewer dimensions (--dim) or a smaller batch", 1)


def _fail(message: str, code: int) -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    sys.exit(code)


def _command(name: str) -> click.Command:
    module = importlib.import_module(f"reranker.cli.{name}")
    return next(value for value in vars(module).values() if isinstance(value, click.Command) and value.name == name)


def _command_of_package(name: str) -> click.Command:
    """Return a command of another package. Raises `MissingExtra` if the package or one of its libraries is missing."""
    entries = list(metadata.entry_points(group=ENTRY_POINTS, name=name))
    if not entries:
        raise MissingExtra(EXTRAS[name], EXTRAS[name])
    try:
        command: click.Command = entries[0].load()
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or EXTRAS[name], EXTRAS[name]) from error
    return command


def _load_config(ctx: click.Context, path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of the configuration file by click's parameter names.

    The values of ``[default]`` are merged into the table of the command that was called.
    """
    tables = read_config(path)
    where = f"configuration file {str(path)!r}"
    for name in tables:
        refuse_removed_command(name, f"{where}, table [{name}]")
    reject_unknown(tables.keys(), [*COMMANDS, "engine", "default"], where)
    default = tables.pop("default", {})
    reject_unknown(default.keys(), DEFAULTS, f"{where}, table [default]")
    called = {ctx.invoked_subcommand or "engine"} - {*NO_DEFAULTS} if default else set[str]()
    for name in sorted({*tables, *called} - {"engine"}):
        command = main.get_command(ctx, name)
        shared = default if name in called else {}
        tables[name] = _parameters(name, command, tables.get(name, {}), shared, path, f"{where}, table [{name}]")
    reject_unknown(tables.get("engine", {}).keys(), EngineSettings.keys(), f"{where}, table [engine]")
    return tables


def _parameters(
    name: str, command: click.Command | None, table: dict[str, Any], default: dict[str, Any], path: Path, where: str
) -> dict[str, Any]:
    """Return a command's table by click's parameter names. A group's table holds one table for each of its commands.

    ``name`` is the name of the command with that of its group, such as ``clicks pairs``.
    """
    if isinstance(command, common.CommandGroup):
        reject_unknown(table.keys(), command.commands, where)
        return {
            inner: _parameters(f"{name} {inner}", each, table.get(inner, {}), default, path, f"{where[:-1]}.{inner}]")
            for inner, each in command.commands.items()
            if isinstance(table.get(inner, {}), dict)
        }
    options = {common.option_key(option): option for option in common.options_of(command)} if command else {}
    refuse_removed(name, table, where)
    reject_unknown(table.keys(), options.keys(), where)
    # One model of several is served: the folder of all of them takes the place of the model of the other commands.
    replaced = {"model"} if "models" in table else set()
    shared = {key: value for key, value in default.items() if key in options and key not in replaced}
    return {str(options[key].name): _placed(options[key], value, path) for key, value in {**shared, **table}.items()}


def _placed(option: click.Option, value: Any, path: Path) -> Any:
    """Return the value of an option. A relative path is resolved against the folder of the configuration file."""
    if isinstance(value, str) and isinstance(option.type, click.Path):
        return str(path.parent / value)
    if isinstance(value, str) and common.option_key(option) == "engine":
        return absolute_spec(value, path.parent)
    return value


_SETTINGS = {"auto_envvar_prefix": "SSI", "help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=MainGroup, context_settings=_SETTINGS)
@click.option(
    "--config",
    type=common.PATH,
    envvar="SSI_CONFIG",
    metavar="FILE",
    help="TOML file. Each table is named after a command, and its keys are options of that command. [default] applies "
    "to all commands; [engine] holds the connection settings.  [default: ssi.toml, if it exists]",
)
@click.version_option(package_name="ssi-reranker", prog_name="ssi")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Rerank the results of a search engine with a model trained on your own links, judgments or clicks.

    Elasticsearch, OpenSearch or an embedded engine finds the candidates. The model reorders them. It scores exact word
    matches, and also pairs of query word and document word that it has learned to be related. `ssi demo` is a
    demonstration that takes two minutes.
    """
    path = config or (CONFIG if CONFIG.is_file() else None)
    tables = _load_config(ctx, path) if path else {}
    ctx.obj = tables
    ctx.default_map = {name: table for name, table in tables.items() if name != "engine"}
