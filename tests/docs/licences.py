"""``python -m tests.docs.licences``: licences of the pinned dependencies as Markdown, kept in ``docs/licences.md``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, EXTRAS, DEVELOPMENT = "program", "extras", "development"
"""Values of the column *needed by*; the first that applies."""
ONLY_DEVELOPMENT: Final = ("dev", "ir-datasets")
"""Extras that the published program does not need."""
STATED: Final = {
    "crawler-user-agents": "MIT",
    "isoduration": "ISC",
    "rerankers": "Apache-2.0",
}
"""Licences of packages whose metadata contains only the text of the licence, or none: by their licence files."""
SAY_NOTHING: Final = ("", "UNKNOWN", "Dual License")
"""Values of the field ``License`` that name no licence."""
LONGEST = 40
"""A longer field ``License`` is the text of a licence, not its name."""


def pins(text: str) -> dict[str, str]:
    """Return name → version of the lines of ``constraints.txt``."""
    return dict(line.split("==", 1) for line in text.splitlines() if "==" in line)


def licence(name: str) -> str:
    """Return the licence that a package states: the expression, or else the name, or else the classifiers."""
    if name in STATED:
        return STATED[name]
    about = metadata.metadata(name)
    classified = [
        re.sub(r"^.*\((.+)\)$|^(.*)$", r"\1\2", one.rpartition(":: ")[2])
        for one in about.get_all("Classifier", [])
        if one.startswith("License :: ") and one != "License :: DFSG approved"
    ]
    expression, field = ("".join(about.get_all(key, [])[:1]) for key in ("License-Expression", "License"))
    is_name = field not in SAY_NOTHING and len(field) <= LONGEST and "\n" not in field
    return expression or (field if is_name else "") or ", ".join(classified)


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the canonical names of requirements, and of the installed packages that they need."""
    found: set[str] = set()
    waiting = [(Requirement(one), frozenset({""})) for one in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, outer = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in outer)
        extras = frozenset({"", *requirement.extras})
        if not wanted or (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        try:
            inner = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            continue
        waiting += [(Requirement(one), extras) for one in inner]
    return found


def users() -> dict[str, str]:
    """Return canonical name → `PROGRAM` or `EXTRAS` of all packages that the published program can need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = project["name"]
    rare = [
        one
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in ONLY_DEVELOPMENT
        for one in requirements
        if Requirement(one).name != own
    ]
    found = dict.fromkeys(needed(rare), EXTRAS)
    return found | dict.fromkeys(needed(project["dependencies"]), PROGRAM)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, version, licence and *needed by* of each pinned package.

    The licence is "?" if the package is not installed, or in another version.
    """
    who = users()
    for name, version in pins((ROOT / "constraints.txt").read_text(encoding="utf-8")).items():
        try:
            stated = licence(name) if metadata.version(name) == version else "?"
        except metadata.PackageNotFoundError:
            stated = "?"
        yield name, version, stated, who.get(canonicalize_name(name), DEVELOPMENT)


def page() -> str:
    """Return the Markdown text."""
    lines = [
        "# Licences of the dependencies",
        "",
        "Written by `python -m tests.docs.licences > docs/licences.md` from the metadata of the packages that",
        "`constraints.txt` names. The program itself has the Apache License 2.0 ([LICENSE](../LICENSE)) and contains",
        "none of these packages. *program*: installed with it; *extras*: by one of its extras; *development*: only for",
        "tests and builds. `make dist` writes the first two as an SBOM.",
        "",
        "| package | version | licence | needed by |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
