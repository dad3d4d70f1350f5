"""``ssi reproduce``: runs tasks of the papers with the papers' systems for comparison."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table as RichTable

from reranker.cli.common import err, json_option, out, print_json, stage_progress
from reranker.errors import ConfigError, InputError, MissingExtra, RerankerError

if TYPE_CHECKING:
    from papers.registry import Progress, Section, Table, Task, TaskRequest


EXAMPLES = """\b
Examples:
  ssi reproduce --list
  ssi reproduce T1a --small
  ssi reproduce T1a T3b --systems tf-idf,utv-plus-i,psi-3 --out results/
  ssi reproduce T1a T2 --seeds 3 --out results/
  ssi reproduce T12 --corpus cppdocs/ --steps 1000000
  ssi reproduce all --out results/

A corpus is a folder with docs.jsonl[.gz] and links_train, links_valid, links_test (.tsv[.gz]), or with
queries.tsv[.gz] and qrels.tsv[.gz]; or ir_datasets:NAME. Without --corpus, tasks look for theirs in SSI_DATA.
Finished results under --out are reused; the report is --out/report.html.
"""


@click.command(epilog=EXAMPLES)
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--systems", "names", metavar="A,B", help="Systems to run, or all.  [default: the task's own]")
@click.option("--corpus", metavar="DIR", help="The corpus, or a folder of corpora by name.  [default: SSI_DATA]")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproduced"),
    show_default=True,
    metavar="DIR",
    help="Folder for results, runs and the report.",
)
@click.option("--small", is_flag=True, help="Seconds instead of hours; the figures mean nothing.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "--seeds",
    "n_seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="Run with N seeds, from --seed on, and show means and deviations over them.",
)
@click.option(
    "--dims",
    "n_dims",
    type=click.IntRange(1),
    metavar="N",
    help="Dimensions of embeddings, factors and topics; in T12 the largest number.",
)
@click.option("--steps", "n_steps", type=click.IntRange(1), metavar="N", help="Largest number of SGD steps.")
@click.option("--every", type=click.IntRange(1), metavar="N", help="Steps between validations.")
@click.option(
    "--patience", type=click.IntRange(1), metavar="N", help="Validations without improvement before a fit stops."
)
@click.option("--iterations", "n_iterations", type=click.IntRange(1), metavar="N", help="Iterations of EM and L-BFGS.")
@click.option("--rates", metavar="X,Y", help="Learning rates to try.")
@click.option("--slots", "n_slots", type=click.IntRange(1), metavar="H", help="Number of weights of hash kernels.")
@click.option("--grid", type=click.IntRange(1), metavar="N", help="Largest number of values tried for a setting.")
@click.option(
    "--degree", type=click.IntRange(2, 12), metavar="K", help="Degree of the polynomial model psi-k.  [default: 5]"
)
@click.option("--list", "listed", is_flag=True, help="List tasks and systems with the ids of the papers' checklist.")
@json_option
def command(
    tasks: tuple[str, ...], names: str | None, corpus: str | None, listed: bool, as_json: bool, **choice: Any
) -> None:
    """Run tasks of the papers and compare systems on one corpus, next to the figures of the paper.

    Every system has the same budget and is tuned on validation data. The papers' figures are for other data.
    """
    if listed:
        _list(as_json)
        return
    if not tasks:
        raise ConfigError("no task is given: give ids such as T1a, or all; ssi reproduce --list shows them")
    from papers import registry
    from papers.registry import TaskRequest
    from papers.report import write_report

    if find_spec("sklearn") is None:
        raise MissingExtra("sklearn", "papers")
    asked = tuple(part.strip() for part in (names or "").split(",") if part.strip())
    registry.chosen(asked, ())  # raises for unknown names before any work is done
    chosen = list({task.id: task for name in tasks for task in _tasks(name)}.values())
    folder, seeds = choice["folder"], range(choice["seed"], choice["seed"] + choice["n_seeds"])
    settings = (folder, asked, choice["small"], seeds[0], _budget(choice))
    requests = [TaskRequest(_corpus(task, corpus), *settings) for task in chosen]
    sections, errors = _run(chosen, requests, seeds)
    report = folder / "report.html"
    if as_json:
        print_json({"report": str(report), "sections": [_section_json(section) for section in sections]})
    else:
        for section in sections:
            _show(section)
    for section in sections:
        _keep_pictures(section, folder)
    reported = [replace(request, seed=seed) for seed in seeds for request in requests]
    write_report(sections, report, reported, _command_line(), _now())
    err().print(f"report: {report}", markup=False)
    if errors:
        raise errors[0]


def _run(
    tasks: Sequence[Task], requests: Sequence[TaskRequest], seeds: Sequence[int]
) -> tuple[list[Section], list[RerankerError]]:
    """Return the section of each task, and the errors; tasks after a failed one still run."""
    from papers.registry import Section

    sections, errors = [], []
    with stage_progress("steps") as update:
        for task, request in zip(tasks, requests, strict=True):
            try:
                sections.append(_section(task, request, seeds, update))
            except RerankerError as error:
                errors.append(error)
                sections.append(Section(task.id, task.title, (f"This task failed: {error}",)))
    return sections, errors


def _section(task: Task, request: TaskRequest, seeds: Sequence[int], update: Progress) -> Section:
    """Return the section of a task; with several seeds that of the first one, after the means over all of them.

    Each seed has a folder of its own, so that results of all seeds are used again.
    """
    from papers.results import Results, over_seeds

    if len(seeds) == 1:
        return task.run(request, update)
    sections: list[Section] = []
    found: dict[int, list[Results]] = {}
    for seed in seeds:
        kept = found.setdefault(seed, [])
        asked = replace(request, seed=seed, out=request.out / f"seed-{seed}", keep=kept.append)
        sections.append(task.run(asked, update))
    tables = [
        table
        for number in range(len(found[seeds[0]]))
        for table in over_seeds({seed: kept[number] for seed, kept in found.items()})
    ]
    sentence = f"Tables over seeds are of the seeds {', '.join(map(str, seeds))}; all others are of seed {seeds[0]}."
    first = sections[0]
    return replace(first, tables=(*tables, *first.tables), sentences=(sentence, *first.sentences))


def _tasks(name: str) -> list[Task]:
    """Return the task of an id, or all."""
    from papers import registry

    return list(registry.tasks().values()) if name.lower() == registry.ALL else [registry.task(name)]


def _corpus(task: Task, corpus: str | None) -> Path:
    """Return the corpus asked for, or the task's own in the folder of corpora."""
    from papers.corpora import library_name

    if corpus is not None and library_name(Path(corpus)) is not None:
        return Path(corpus)
    root = corpus or os.environ.get("SSI_DATA")
    default = task.corpora[0]
    if root is None:
        raise ConfigError(
            f"task {task.id} needs a corpus: name it with --corpus DIR, or set SSI_DATA to a folder that holds "
            f"{' or '.join(task.corpora)}; ssi reproduce --help describes a corpus"
        )
    inside = [Path(root) / name for name in task.corpora if (Path(root) / name).is_dir()]
    folder = Path(root) if corpus is not None else Path(root) / default
    if not inside and not folder.is_dir():
        raise InputError(
            f"task {task.id} needs a corpus such as {' or '.join(task.corpora)}, and {str(folder)!r} is not a folder: "
            f"name one with --corpus DIR; it holds docs.jsonl[.gz] and links or judgments, see ssi reproduce --help"
        )
    return inside[0] if inside else folder


def _budget(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the budget that were given."""
    fields = ("n_dims", "n_steps", "every", "patience", "n_iterations", "n_slots", "grid", "degree")
    given = {name: choice[name] for name in fields if choice[name] is not None}
    return given if choice["rates"] is None else {**given, "rates": _rates(choice["rates"])}


def _rates(text: str) -> tuple[float, ...]:
    """Return the rates of a list such as ``0.1,0.03``."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigError(f"--rates {text!r} is invalid: write numbers above 0 with commas, such as 0.1,0.03")
    return rates


def _show(section: Section) -> None:
    """Print a section: its tables, then its sentences."""
    for table in section.tables:
        out().print(_rich(table, f"{section.task}: {table.title}"))
        if table.note:
            out().print(table.note, markup=False, style="dim")
        out().print()
    for sentence in section.sentences:
        out().print(sentence, markup=False)
    out().print()


def _rich(table: Table, title: str) -> RichTable:
    from rich.text import Text

    shown = RichTable(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        wraps = place == 0 or column == "settings"
        shown.add_column(Text(column), justify="left" if wraps else "right", no_wrap=False)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def _keep_pictures(section: Section, folder: Path) -> None:
    """Write each chart of a section next to its results."""
    from papers.results import file_name
    from reranker.files import write_file

    for picture in section.pictures:
        write_file(folder / file_name(section.task) / f"{file_name(picture.name)}.svg", picture.svg)


def _section_json(section: Section) -> dict[str, Any]:
    """Return a section as JSON; charts are separate files."""
    said = asdict(section)
    for picture in said["pictures"]:
        del picture["svg"]
    return said


def _list(as_json: bool) -> None:
    """Print tasks and systems."""
    from papers import registry

    tasks, systems = registry.tasks().values(), registry.systems().values()
    if as_json:
        print_json(
            {
                "tasks": [
                    {
                        "id": task.id,
                        "title": task.title,
                        "corpora": list(task.corpora),
                        "systems": list(task.systems),
                        "source": task.source,
                    }
                    for task in tasks
                ],
                "systems": [
                    {"name": system.name, "ids": list(system.ids), "title": system.title, "needs": sorted(system.needs)}
                    for system in systems
                ],
            }
        )
        return
    of_tasks = RichTable("task", "title", "corpora", "systems", box=None, pad_edge=False)
    for task in tasks:
        of_tasks.add_row(task.id, task.title, ", ".join(task.corpora), ", ".join(task.systems))
    of_systems = RichTable("system", "ids", "title", "needs", box=None, pad_edge=False)
    for system in systems:
        of_systems.add_row(system.name, ", ".join(system.ids), system.title, ", ".join(sorted(system.needs)))
    out().print(of_tasks)
    out().print()
    out().print(of_systems)


def _command_line() -> str:
    from shlex import join

    return join(["ssi", *sys.argv[1:]]) if Path(sys.argv[0]).name == "ssi" else "ssi reproduce"


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
