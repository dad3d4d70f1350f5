"""The ``ssi`` command: finds the commands, reads the configuration, and turns errors into exit statuses."""

from __future__ import annotations

import errno
import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from reranker.cli import common
from reranker.config import read_config, reject_unknown
from reranker.engines import EngineSettings
from reranker.errors import MissingExtra, RerankerError

COMMANDS: dict[str, str] = {
    "demo": "Try it: the documentation of the installed Python, embedded engine, two minutes.",
    "train": "Learn a model from documents and links, judgements or pairs.",
    "index": "Send documents, with their vectors, to an engine.",
    "search": "Search an index and rerank the hits.",
    "serve": "Serve search with reranking, and rerank APIs, over HTTP.",
    "evaluate": "Rank every document and compare the model with lexical baselines.",
    "calibrate": "Fit how much the model and the engine's own score count.",
    "retrain": "Learn again from clicks; the new model goes live only if it is better.",
    "revectorize": "Write the vectors of a model beside the documents of an existing index.",
    "sync": "Find documents whose vector is missing or stale, and renew it.",
    "versions": "List the model versions of an index, and which one is live.",
    "promote": "Make a version live.",
    "rollback": "Make the previously live version live again.",
    "gc": "Remove the fields of versions that are no longer needed.",
    "interleave": "Compare two versions by the clicks of visitors who see both in one list.",
    "drift": "Say how far an index has moved from what the model was trained on.",
    "words": "Look into a model: words near a word, words that a query stands for.",
    "reproduce": "Run the tasks of the papers with every system of the papers, side by side.",
    "scripts": "Let the engine rerank by itself: stored scripts, pipelines, inference endpoints.",
    "clicks": "Click logs: keep them without personal data, examine them, make pairs of them.",
}
"""Command names with the line that ``ssi --help`` shows; each lives in a module of its name, except for those below."""

MODULES = {
    "calibrate": "search", "revectorize": "index", "sync": "index", "promote": "versions", "rollback": "versions",
    "gc": "versions", "drift": "versions", "interleave": "serve", "retrain": "clicks",
}  # fmt: skip
"""Commands that share a module."""

EXTRAS = {"reproduce": "papers"}
"""Commands of other packages, which bring them as entry points, with the extra that they need."""

ENTRY_POINTS = "ssi.commands"
"""Group of these entry points."""


class MainGroup(common.CommandGroup):
    """The group of all commands: imports one when it is asked for, so that ``--help`` needs no heavy library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, imported now; None where there is none."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            load = _command_of_package if cmd_name in EXTRAS else _command
            self.add_command(load(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add exit statuses and examples."""
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), meaning) for code, meaning in common.EXIT_CODES.items()])
        with formatter.section("Examples"):
            formatter.write_text("ssi demo")
            formatter.write_text("ssi train --docs docs.jsonl --links links.tsv --model model/")
            formatter.write_text("ssi COMMAND --help")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; every expected error becomes one clear message and its exit status."""
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
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    sys.exit(code)


def _command(name: str) -> click.Command:
    module = importlib.import_module(f"reranker.cli.{MODULES.get(name, name)}")
    return next(value for value in vars(module).values() if isinstance(value, click.Command) and value.name == name)


def _command_of_package(name: str) -> click.Command:
    """Return the command that another package brings; raise `MissingExtra` where that or its libraries are missing."""
    entries = list(metadata.entry_points(group=ENTRY_POINTS, name=name))
    if not entries:
        raise MissingExtra(EXTRAS[name], EXTRAS[name])
    try:
        command: click.Command = entries[0].load()
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or EXTRAS[name], EXTRAS[name]) from error
    return command


def _load_config(ctx: click.Context, path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of the configuration file: keys, which are the names of options, as click knows them."""
    tables = read_config(path)
    where = f"configuration file {str(path)!r}"
    reject_unknown(tables.keys(), [*COMMANDS, "engine"], where)
    for name, table in tables.items():
        if name == "engine":
            reject_unknown(table.keys(), EngineSettings.keys(), f"{where}, table [engine]")
        else:
            tables[name] = _parameters(main.get_command(ctx, name), ctx, table, where, name)
    return tables


def _parameters(
    command: click.Command | None, ctx: click.Context, table: dict[str, Any], where: str, name: str
) -> dict[str, Any]:
    """Return a command's table by click's names; the table of a group holds one table a command."""
    if isinstance(command, common.CommandGroup):
        reject_unknown(table.keys(), command.commands, f"{where}, table [{name}]")
        return {
            inner: _parameters(command.get_command(ctx, inner), ctx, part, where, f"{name}.{inner}")
            for inner, part in table.items()
            if isinstance(part, dict)
        }
    names = {common.option_key(option): str(option.name) for option in common.options_of(command)} if command else {}
    reject_unknown(table.keys(), names.keys(), f"{where}, table [{name}]")
    return {names[key]: value for key, value in table.items()}


_SETTINGS = {"auto_envvar_prefix": "SSI", "help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=MainGroup, context_settings=_SETTINGS)
@click.option("--config", type=common.PATH, envvar="SSI_CONFIG", metavar="FILE",
              help="TOML file: tables are commands, keys their options; [engine] says how to reach the engine.",
              )  # fmt: skip
@click.version_option(package_name="ssi-reranker", prog_name="ssi")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Teach a search engine from a site's own links and clicks, and rerank its results.

    f(q, d) = qᵀ(UᵀV + I)d: the identity keeps exact word matching, UᵀV adds what the links taught.
    """
    tables = _load_config(ctx, config) if config else {}
    ctx.obj = tables
    ctx.default_map = {name: table for name, table in tables.items() if name != "engine"}
