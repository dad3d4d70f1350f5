"""`make test-full` sets exactly the lengths that tests read, and `make mutants` has mistakes that can be made.

`make test` names versions of engines and tests that are there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.engines.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]
TOLERANCES = {"SSI_SERVICE_BUSY"}
"""How much slower a busy machine may be: no lengths."""
LENGTH = re.compile(r'(?:int|float)\(os\.environ\.get\("(SSI_\w+)", "(\d+)"\)\)')


def test_full_lengths_are_those_that_tests_read_and_none_is_shorter() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    full = re.search(r"^FULL = ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert full is not None
    lengths = {name: int(value) for name, value in re.findall(r"(SSI_\w+)=(\d+)", full[1])}
    read: dict[str, int] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, quick in LENGTH.findall(path.read_text(encoding="utf-8")):
            read[name] = max(read.get(name, 0), int(quick))
    assert lengths.keys() == read.keys() - TOLERANCES
    assert all(lengths[name] >= read[name] for name in lengths)


def test_make_test_and_make_slow_leave_nothing_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = {name: body for name, body in re.findall(r"^(\w+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)}
    others = re.search(r"^OTHERS = (.*)$", makefile, re.MULTILINE)
    assert others is not None
    asked = {name: re.findall(r'-m "([^"]+)"', body) for name, body in rules.items()}
    assert asked["kernels"] == ["not live and not slow"] and "$(KERNELS)" in rules["kernels"]
    assert '-m "not live and not slow" $(addprefix --ignore=,$(KERNELS))' in others[1]
    assert "check kernels" in rules["test"] and "$(OTHERS)" in rules["test"] and asked["test"] == ["live and not slow"]
    assert asked["slow"] == ["not live and slow", "live and slow"]
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^make (\w+)$", run, re.MULTILINE) == ["test", "slow", "newer"]


def test_the_newer_engines_and_what_they_run_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    versions = dict(re.findall(r"SSI_TEST_([A-Z]+)_VERSION=([\d.]+)", makefile))
    known = {kind.upper(): [recipe.distribution.version for recipe in recipes] for kind, recipes in RECIPES.items()}
    assert versions == {kind: numbers[-1] for kind, numbers in known.items()}
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert all(f"| {number} |" in reference for numbers in known.values() for number in numbers)
    named = re.search(r"^NEWER_TESTS = ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert named is not None
    for name in named[1].replace("\\\n", " ").split():
        file, _, test = name.partition("::")
        assert (ROOT / file).exists() and (not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"))


def test_every_mistake_that_is_kept_can_still_be_made() -> None:
    """Code that changed takes its mistakes with it: state them anew, do not let them go."""
    kept = tomllib.loads((ROOT / "benchmarks" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    assert len({(mutant["file"], mutant["old"], mutant["new"]) for mutant in kept}) == len(kept) >= 200
    for mutant in kept:
        text = (ROOT / mutant["file"]).read_text(encoding="utf-8")
        assert text.count(mutant["old"]) == 1 and mutant["new"] != mutant["old"], mutant
        assert [name for name in mutant["tests"] if not (ROOT / name).is_file()] == [], mutant["file"]
