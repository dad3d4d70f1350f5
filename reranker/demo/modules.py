"""The standard library's source files, parsed but never imported."""

from __future__ import annotations

import ast
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reranker.errors import InputError

SKIPPED = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "site-packages", "dist-packages", "encodings",
     "ensurepip", "distutils", "lib-dynload", "__pycache__", "__phello__", "_pyrepl", "ntpath.py", "nturl2path.py",
     "antigravity.py", "this.py")
)  # fmt: skip
"""Folders and files left out: tests, programs, tables, and doubles of other modules."""

MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True)
class Module:
    """A parsed source file.

    Parameters
    ----------
    name : str
        Dotted, as it is imported.
    tree : ast.Module
    is_package : bool
    """

    name: str
    tree: ast.Module
    is_package: bool


def library_folder() -> Path:
    """Return the folder of the running Python's standard library.

    Raises
    ------
    InputError
        If it has no source files (some installations carry compiled files alone).
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise InputError(
            f"the Python running this has no source files of its standard library in {str(folder)!r}: the "
            "demonstration reads them; use a Python that has them (most installations do)",
            path=str(folder),
        )
    return folder


def read_modules(folder: Path) -> Iterator[Module]:
    """Yield the modules of a library in the order of their names; files that do not parse are passed over."""
    for name, path in sorted(_files(folder)):
        tree = _parsed(path)
        if tree is not None:
            yield Module(name, tree, path.name == "__init__.py")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (module name, file) of every file worth reading."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        wanted = not any(part in SKIPPED or part.startswith(("config-", "_sysconfigdata")) for part in parts)
        if wanted and all(part.removesuffix(".py").isidentifier() for part in parts):
            names = [*parts[:-1], *([] if parts[-1] == "__init__.py" else [parts[-1].removesuffix(".py")])]
            if names and names[-1] != "__main__":
                yield ".".join(names), path


def _parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or None where it cannot be read as Python."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
