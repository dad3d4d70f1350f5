"""The ``ssi`` command: collects the commands, reads the configuration, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.cli.common import EXIT_CODES
from reranker.cli.groups import LazyGroup, option_key, options_of
from reranker.config import read_config, reject_unknown

COMMANDS: dict[str, str] = {
    "demo": "Try it: the documentation of the installed Python, embedded engine, one minute.",
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
"""Command names with the line that ``ssi --help`` shows; each lives in ``reranker/cli/<name>.py`` as ``command``."""


class MainGroup(LazyGroup):
    """The group of all commands; its help ends with exit statuses and examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add exit statuses and examples."""
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])
        with formatter.section("Examples"):
            formatter.write_text("ssi demo")
            formatter.write_text("ssi train --docs docs.jsonl --links links.tsv --model model/")
            formatter.write_text("ssi COMMAND --help")


def _load_config(ctx: click.Context, path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of the configuration file: keys, which are the names of options, as click knows them."""
    from reranker.engines import EngineSettings

    tables = read_config(path)
    where = f"configuration file {str(path)!r}"
    reject_unknown(tables.keys(), [*COMMANDS, "engine"], where)
    group, found = ctx.command, {}
    for name, table in tables.items():
        if name == "engine":
            reject_unknown(table.keys(), EngineSettings.keys(), f"{where}, table [engine]")
            found[name] = table
        elif isinstance(group, LazyGroup):
            found[name] = _keys_of(group.get_command(ctx, name), ctx, table, f"{where}, table [{name}]")
    return found


def _keys_of(command: click.Command | None, ctx: click.Context, table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a command's table by click's names; the table of a group holds one table a command."""
    if isinstance(command, LazyGroup):
        reject_unknown(table.keys(), command.summaries, where)
        return {
            name: _keys_of(command.get_command(ctx, name), ctx, part, f"{where[:-1]}.{name}]")
            for name, part in table.items()
            if isinstance(part, dict)
        }
    names = {option_key(option): str(option.name) for option in options_of(command)} if command else {}
    reject_unknown(table.keys(), names.keys(), where)
    return {names[key]: value for key, value in table.items()}


@click.group(
    cls=MainGroup,
    summaries=COMMANDS,
    context_settings={"auto_envvar_prefix": "SSI", "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="SSI_CONFIG",
    metavar="FILE",
    help="TOML file: tables are commands, keys their options; [engine] says how to reach the engine.",
)
@click.version_option(package_name="ssi-reranker", prog_name="ssi")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Teach a search engine from a site's own links and clicks, and rerank its results.

    f(q, d) = qᵀ(UᵀV + I)d: the identity keeps exact word matching, UᵀV adds what the links taught.
    """
    tables = _load_config(ctx, config) if config else {}
    ctx.obj = tables
    ctx.default_map = {name: table for name, table in tables.items() if name != "engine"}
