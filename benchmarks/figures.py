"""docs/figures.md and the figures of README.md, made from the kept results in ``benchmarks/results``.

    python benchmarks/figures.py [--check]

Writes both files; with ``--check`` it says what differs and ends with status 1. Every row of a result file is shown, a
worse one beside a better one; nothing is typed by hand. Which columns is said in ``figures.toml``. `make figures` runs
it, and a test checks that it was run. A study without results is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "figures.md", ROOT / "README.md"
BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"


SMALL_P = "< .0001"
README_ROWS = tuple(
    f"defaults, {what}" for what in ("whole pages", "10 random words of a page", "pages not seen in training")
)
"""Rows of linked documentation that README.md shows."""


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


def rendered(study: Mapping[str, Any]) -> str:
    """Return the section of a result file."""
    content = load(study["file"])
    known = content["about"]
    seed = "" if known["seed"] is None else f", seed {known['seed']}"
    parts = [
        f"## {study['title']}",
        study["text"],
        f"`{known['command']}`{seed}, version {known['version']}, {known['date']}, {known['machine']}",
    ]
    for passed, printed in rows_at(content, study["as_printed"]) if "as_printed" in study else ():
        rows = [[shown(text) for text in row] for row in printed["rows"]]
        title = f"**{passed[0]}: {printed['title']}.** {printed['note']}"
        parts += [title.rstrip(), table(printed["columns"], rows)]
    for part in study.get("table", ()):
        names, columns = part.get("names", []), part["columns"]
        rows = [
            [*(shown(name) for name in passed), *(cell(row, path) for path in columns.values())]
            for passed, row in rows_at(content, part["rows"])
        ]
        parts.append(table([*names, *columns], [row for row in rows if any(row[len(names) :])]))
    return "\n\n".join(parts)


def page() -> str:
    """Return docs/figures.md."""
    head = (
        "# Figures\n\nWritten by `make figures` from `benchmarks/results`; every row of a result is here. Each section "
        "names the command that made it. Most were taken on two cores while the machine was doing other work: compare "
        "times within a table only."
    )
    studies = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text(encoding="utf-8"))["study"]
    return "\n\n".join([head, *(rendered(study) for study in studies if kept(study["file"]))]) + "\n"


def readme_rows() -> str:
    """Return the table of README.md: the rows that the defaults give, one number a cell."""
    rows = [
        [
            f"linked documentation: {row['row'].removeprefix('defaults, ')}",
            "MAP",
            cell(row, "test.systems.bm25.AP.mean|allowed.systems.bm25.AP.mean"),
            cell(row, "test.systems.model.AP.mean") or "not written: no better",
            cell(row, "test.tests.bm25.AP.p_t_test"),
        ]
        for row in load("generalisation")["rows"]
        if row["corpus"] == "cppdocs" and row["row"] in README_ROWS and row.get("seed", 0) == 0 and not row.get("set")
    ]
    for row in load("end_to_end")["runs"]:
        kind = {"msrd_movies": "movie search", "esci_sample": "product search"}.get(row["set"])
        if kind and row["engine"] == "elasticsearch":
            rows.append(
                [
                    f"{kind} through Elasticsearch",
                    "nDCG@10",
                    cell(row, "systems.engine.nDCG@10.mean"),
                    cell(row, "systems.model.nDCG@10.mean"),
                    cell(row, "systems.model.nDCG@10.p"),
                ]
            )
    return table(["task", "measure", "BM25, tuned", "model", "p"], rows)


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
    options = parser.parse_args()
    made = {PAGE: page(), README: readme()}
    if options.check:
        differing = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
        if differing:
            sys.exit(f"{', '.join(differing)}: not what benchmarks/results say; run  make figures")
        return
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
