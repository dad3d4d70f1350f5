"""Deliberate mistakes, and whether the tests catch them: ``make mutants``.

``mutants.toml`` lists them: in ``file``, ``old`` (which stands there once) becomes ``new``, and one of ``tests`` must
fail. The mistakes are made in copies of the checkout, one after the other; the checkout itself is not touched. Exit
status 1 where fewer than 97 % are caught.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
TARGET = 0.97
TIMEOUT_S = 900
"""A mistake may make a loop endless; that is caught."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Paths for pytest."""

    @property
    def name(self) -> str:
        """File and the changed line, for people."""
        return f"{self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"


def read_mutants() -> list[Mutant]:
    """Return the kept list."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(each["file"], each["old"], each["new"], tuple(each["tests"])) for each in entries]


def copy_checkout(folder: Path) -> None:
    """Copy what git tracks, or would."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@contextmanager
def changed(folder: Path, mutant: Mutant) -> Iterator[None]:
    """Hold a copy with the mistake made."""
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def passes(folder: Path, tests: tuple[str, ...]) -> bool:
    """Return whether the tests pass in a copy; one that takes too long does not."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not live", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2) and done.returncode > 0:  # 2: it does not even import; below 0: it crashed
        raise RuntimeError(f"pytest {' '.join(tests)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> int:
    """Make the mistakes, print who survived, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="TEXT", help="mistakes whose file or text contains it")
    parser.add_argument("--jobs", type=int, default=2, help="copies worked on side by side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args()
    mutants = [mutant for mutant in read_mutants() if options.only in mutant.name]
    copies: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            folder = Path(place) / str(number)
            copy_checkout(folder)
            copies.put(folder)

        def at_work(mutant: Mutant | None, tests: tuple[str, ...]) -> bool:
            folder = copies.get()
            try:
                with nullcontext() if mutant is None else changed(folder, mutant):
                    return passes(folder, tests)
            finally:
                copies.put(folder)

        # A test that fails without any mistake would seem to catch them all.
        needed = sorted({mutant.tests for mutant in mutants})
        for tests, passed in zip(needed, pool.map(lambda tests: at_work(None, tests), needed), strict=True):
            if not passed:
                print(f"fails without a mistake: {' '.join(tests)}")
                return 2
        survivors = []
        for mutant, survived in zip(mutants, pool.map(lambda each: at_work(each, each.tests), mutants), strict=True):
            if survived:
                survivors.append(mutant.name)
                print(f"survived  {mutant.name}", flush=True)
    caught = len(mutants) - len(survivors)
    print(f"{caught} of {len(mutants)} mistakes caught ({caught / max(len(mutants), 1):.1%})")
    if options.out is not None:
        result = {"mistakes": len(mutants), "caught": caught, "survivors": survivors}
        options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if caught >= TARGET * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
