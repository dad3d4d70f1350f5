"""The pages of figures and the figures of README.md, made from the kept results in ``benchmarks/results``.

    python benchmarks/figures.py [--check | --programs]

Writes docs/figures.md, which has the tables that a reader decides by and a list of all results; the pages in
docs/figures, which show every row of every result, a worse one beside a better one; and the figures of README.md.
Nothing is typed by hand: ``figures.toml`` names the columns. A study without results is left out.

With ``--check``, nothing is written: it prints which files differ, and ends with status 1 if there are any. With
``--programs`` it prints which results were measured with an earlier program than the present one (`provenance`).
`make figures` and `make figures-check` run it, and tests check that the pages are up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_notes import differences, never_measured, run_notes
from paper_tables import as_known, marked, notes_of
from paper_verdicts import claim_rows, summary, verdict_sentences
from provenance import program_of
from reproduced import DEFAULT_CORPUS, IN_OTHER_RUNS, NAMES, RUNS, heading, option, task_of

from papers.results import LEVEL

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, PAGES, README = ROOT / "docs" / "figures.md", ROOT / "docs" / "figures", ROOT / "README.md"
TITLES = {
    "learning": "Learning from links, judgments and vectors",
    "search": "Searching: quality and latency",
    "clicks": "Click logs and retraining",
    "scale": "Size and speed",
    "papers": "The systems of the papers",
}
"""Title of each page in docs/figures."""
BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"


SMALL_P = "< .0001"
SERVED = ("body", "body, first 100 reranked", "impacts 128", "impacts 128, first 100 reranked", "f")
"""Systems that README.md shows."""
SERVED_BY_GAIN = ("esci_sample",)
"""Corpora of which README.md shows nDCG@10, which knows grades; of others it shows MAP."""


def kept(name: str) -> bool:
    """Return whether there is a result file of this name."""
    return (RESULTS / f"{name}.json").is_file()


def load(name: str) -> dict[str, Any]:
    """Return a result file."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def rows_at(value: Any, path: str, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (names of the mappings passed, row) of each row that a path with ``*`` leads to."""
    if not path:
        yield names, value
        return
    key, _, rest = path.partition(".")
    if key != "*":
        if isinstance(value, Mapping) and key in value:
            yield from rows_at(value[key], rest, names)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "about" and isinstance(inner, Mapping):
                yield from rows_at(inner, rest, (*names, name))
    else:
        for inner in value:
            yield from rows_at(inner, rest, names)


def cell(row: Any, path: str) -> str:
    """Return what stands at a path of a row as a cell, empty where nothing does; ``a|b``: the first there is."""
    for choice in path.split("|"):
        value: Any = row
        for key in choice.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return SMALL_P if value == 0 and choice.split(".")[-1] in ("p", "p_t_test") else shown(value)
    return ""


def shown(value: Any) -> str:
    """Return a value as a cell: numbers to three digits, truth as yes and no, ``|`` escaped."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return SMALL_P if 0 < abs(value) < 5e-5 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([row[i] for i in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def studies() -> list[dict[str, Any]]:
    """Return the studies of ``figures.toml`` that have results."""
    described = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text(encoding="utf-8"))["study"]
    return [study for study in described if kept(study["file"])]


def rendered(study: Mapping[str, Any]) -> str:
    """Return the section of a result file."""
    content = load(study["file"])
    known = content["about"]
    seed = "" if known["seed"] is None else f", seed {known['seed']}"
    parts = [
        f"## {study['title']}",
        study["text"],
        f"`{known['command']}`{seed}, version {known['version']}, {programs_sentence(content)}, {known['date']}, "
        f"{known['machine']}",
    ]
    if "as_printed" in study:
        parts += [of_tasks(content["runs"]), differences(content["runs"]), *of_claims(content["runs"])]
        parts.append(never_measured(content["runs"], load("reproduced_before")))
    named = ""
    for passed, printed in rows_at(content, study["as_printed"]) if "as_printed" in study else ():
        if passed[0] != named:
            named = passed[0]
            parts.append(described_run(named, content))
            said = [*run_notes(named, content["runs"], load("defaults")), *verdict_sentences(content["runs"][named])]
            parts.append("\n".join(f"- {sentence}" for sentence in said))
        task = task_of(passed[0])
        current = marked(as_known(task, printed), notes_of(task, content["runs"][passed[0]]))
        rows = [[shown(text) for text in row] for row in current["rows"]]
        title = f"**{passed[0]}: {printed['title']}.** {current['note']}"
        parts += [title.rstrip(), table(printed["columns"], rows)]
    parts += [of_rows(content, part) for part in study.get("table", ())]
    return "\n\n".join(part for part in parts if part)


def of_claims(runs: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs on the claims of the papers: which hold, are not significant, or are reversed."""
    rows = list(claim_rows(runs))
    columns = ["claim", "of", "run", "here", "cause"]
    return [
        f"**Claims of the papers.** Tests are paired, over queries, at p < {LEVEL}. The sentences of each run, with "
        f"its figures, are below its heading; verdicts with figures are from its tables. {summary(rows)}",
        table(columns, [[shown(cell) for cell in row] for row in rows]),
    ]


def described_run(name: str, content: Mapping[str, Any]) -> str:
    """Return the command of a run of the papers' systems, its program, corpus and size, and the number of seeds."""
    run = content["runs"][name]
    earlier = (
        "" if run["version"] == content["about"]["program"] else ", an earlier program than that of the newest run"
    )
    options = run["command"].removeprefix("ssi reproduce ")
    n_seeds = int(option(options, "--seeds", "1"))
    seeds = "one seed (0)" if n_seeds == 1 else f"{n_seeds} seeds (0 to {n_seeds - 1})"
    sizes = [said for section in run["sections"] for said in section["sentences"] if is_of_size(said)]
    corpus = option(options, "--corpus", DEFAULT_CORPUS)
    data = sizes if any(corpus in said for said in sizes) else [f"Corpus {corpus}.", *sizes]
    return (
        f"**{name}.** `{run['command']}`, measured with program {run['version']}, {run['date']}{earlier}, {seeds}. "
        f"{' '.join(data)}"
    )


def is_of_size(sentence: str) -> bool:
    """Return whether a sentence of a run tells how much data it used."""
    return bool(re.search(r"\d (?:documents|queries to tune on|validation queries)", sentence))


def of_tasks(runs: Mapping[str, Any]) -> str:
    """Return a table of all tasks: where their figures are, or the command that would measure them."""
    rows = []
    for run in RUNS:
        measured = runs.get(heading(run))
        command = measured["command"].removeprefix("ssi reproduce ") if measured else run
        found = "below" if command == run else f"below, by an earlier command; the present one: `ssi reproduce {run}`"
        if not measured:
            found = f"not measured yet: `ssi reproduce {run}`"
        n_seeds, corpus = option(command, "--seeds", "1"), option(command, "--corpus", DEFAULT_CORPUS)
        program = [measured["version"], measured["date"]] if measured else ["", ""]
        rows.append([NAMES.get(run, task_of(run)), corpus, n_seeds, *program, found])
    rows += [[task, "", "", "", "", place] for task, place in IN_OTHER_RUNS.items()]
    return table(["task", "corpus", "seeds", "program", "date", "figures"], rows)


def of_rows(content: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return the table of a part of a study."""
    names, columns = part.get("names", []), part["columns"]
    rows = [
        [*(shown(name) for name in passed), *(cell(row, path) for path in columns.values())]
        for passed, row in rows_at(content, part["rows"])
        if all(agrees(row, place, value) for place, value in part.get("where", {}).items())
    ]
    return table([*names, *columns], [row for row in rows if any(row[len(names) :])])


def agrees(row: Any, place: str, value: str | int) -> bool:
    """Return whether a row has a value at a place: a beginning for a text that ends with ``*``; 0 and "" for none."""
    found = row.get(place) or type(value)()
    if isinstance(value, str) and value.endswith("*"):
        return str(found).startswith(value[:-1])
    return bool(found == value)


def programs_of(content: Mapping[str, Any]) -> list[str]:
    """Return the programs by which a result was measured: those of its rows, or that of the whole file."""
    rows = [row for part in ("rows", "runs") if part in content for _, row in rows_at(content, f"{part}.*")]
    of_rows = {str(row["version"]) for row in rows if isinstance(row, Mapping) and row.get("version")}
    return sorted(of_rows) or [content["about"]["program"]]


def programs_sentence(content: Mapping[str, Any]) -> str:
    """Return the program of a result, as the pages name it."""
    programs = programs_of(content)
    return f"measured with program {programs[0]}" if len(programs) == 1 else f"measured with {len(programs)} programs"


def full_page(name: str) -> str:
    """Return one of the pages in docs/figures."""
    head = (
        f"# {TITLES[name]}\n\nWritten by `make figures` from `benchmarks/results`; every row of a result is here. Each "
        "section names the command and the program that made it. Most were taken on two cores while the machine was "
        "doing other work: compare times within a table only."
    )
    return "\n\n".join([head, *(rendered(study) for study in studies() if study["page"] == name)]) + "\n"


def front_page() -> str:
    """Return docs/figures.md."""
    parts = [
        "# Figures\n\nWritten by `make figures` from `benchmarks/results`. Below are the tables that a decision needs, "
        "and then a list of all results; the linked pages show every row, also the worse ones. *Program* is a digest "
        "of the product's code that the benchmark depends on: `make figures-check` lists the results that were "
        "measured with an earlier one."
    ]
    for study in studies():
        for part in study.get("front", ()):
            content = load(study["file"])
            source = f"[All rows](figures/{study['page']}.md#{anchor(study['title'])}), {programs_sentence(content)}"
            parts += [f"## {part['title']}", of_rows(content, part), f"{source}, {content['about']['date']}."]
    rows = []
    for study in studies():
        content = load(study["file"])
        programs, link = programs_of(content), f"figures/{study['page']}.md#{anchor(study['title'])}"
        rows.append(
            [
                f"[{study['title']}]({link})",
                programs[0] if len(programs) == 1 else f"{len(programs)} programs",
                content["about"]["date"],
            ]
        )
    return "\n\n".join([*parts, "## All results", table(["result", "program", "date"], rows)]) + "\n"


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")


def of_earlier_programs() -> list[str]:
    """Return a line for each result that was not, or not only, measured with the present program."""
    lines = []
    for study in studies():
        content = load(study["file"])
        named_scripts = re.findall(r"benchmarks/\w+\.py", content["about"]["command"])
        script = ROOT / named_scripts[0] if named_scripts else None
        present = program_of(script) if script and script.is_file() else "none: the benchmark was removed"
        earlier = [program for program in programs_of(content) if program != present]
        if earlier:
            named = earlier[0] if len(earlier) == 1 else f"{len(earlier)} earlier programs"
            lines.append(f"{study['file']}: measured with {named}, the present one is {present}")
    return lines


def readme_rows() -> str:
    """Return the table of README.md: what users get of each corpus and kind of queries, in the order of the results."""
    cases: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in load("served")["rows"]:
        case = tuple(row[name] for name in ("corpus", "learned from", "asked with", "engine"))
        cases.setdefault(case, {})[row["system"]] = row
    rows = []
    for (corpus, learned_from, asked_with, engine), systems in cases.items():
        measure = "nDCG@10" if corpus in SERVED_BY_GAIN else "AP"
        asked = "" if asked_with == "text" else f", {asked_with} of a page"
        values = [cell(systems[name], measure) for name in SERVED]
        if engine == "elasticsearch":
            rows.append([f"{corpus}{asked}", learned_from, "MAP" if measure == "AP" else measure, *values])
    head = ["corpus and queries", "learned from", "measure", "BM25", "its first 100 reranked", "impacts"]
    return table([*head, "impacts, first 100 reranked", "the model over all documents"], rows)


def readme() -> str:
    """Return README.md with its figures as the results have them."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{readme_rows()}\n\n{END}{after}"


def main() -> None:
    """Write the figures, or say which are not what the results are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file differs")
    parser.add_argument("--programs", action="store_true", help="write nothing; list the results of earlier programs")
    options = parser.parse_args()
    if options.programs:
        print("\n".join(of_earlier_programs()) or "all results were measured with the present program")
        return
    made = {PAGE: front_page(), **{PAGES / f"{name}.md": full_page(name) for name in TITLES}, README: readme()}
    if options.check:
        differing = [
            path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        if differing:
            sys.exit(f"{', '.join(differing)}: not what benchmarks/results say; run  make figures")
        return
    PAGES.mkdir(exist_ok=True)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
