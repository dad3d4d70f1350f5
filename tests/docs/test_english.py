"""Words that this project's prose does not use, because a reader new to it has to guess what they mean.

Docstrings, comments and texts of programs are read, and the pages of the documentation; code and names are not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("reranker", "indexer", "papers", "plugin_scripts")
PAGES = ("README.md", "docs")
SUFFIXES = {".py", ".md", ".js", ".html", ".j2", ".sql", ".painless"}

REPLACED = {
    r"\btold\b": "reported, logged, given, distinguished",
    r"\banew\b": "again, rebuilt, reloaded",
    r"\balone\b": "only, by itself",
    r"(?<![`*'\":=/,.-])(?<!route )(?<!routes )\bbeside\b(?![`*'\",.:/|\\-])": "compared with, versus",
    r"\b(?:lack|lacks|lacked|lacking)\b": "is missing, has no",
    r"\bwhoever\b": "the user, the client; name the noun",
    r"\bwhat became of\b": "the result of",
    r"\bso (?:many|few|much)\b": "name the number: a batch of n",
    r"\bsome at a time\b": "in batches of n",
    r"\b(?:is|are|was|be) not to be had\b": "is missing, unavailable",
    r"\blook(?:s|ed)? (?:for another|anew)\b": "poll",
    r"\bthe (?:house|workshop|shelf)\b": "name the thing",
    r"\bwhere that is so\b": "then, in that case",
    r"\btaken where\b": "used if",
}
"""Expression, and what to write."""
OPENINGS = {r"What\b": "the noun itself", r"Make rows\b": "build, encode, compute"}
"""First words of a docstring, and what to write."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "reranker/baselines/comparison.py": ("``alone``", '"alone"'),  # a value of the JSON output
    "reranker/service/operate.py": ('"words alone"',),  # a name in the JSON output
}
"""Path of a file to the phrases in it that may stand."""


def files() -> list[Path]:
    """Return the files whose prose is read."""
    found = [path for part in (*PROGRAMS, *PAGES) for path in (ROOT / part).rglob("*")] + [ROOT / PAGES[0]]
    generated = {ROOT / "docs" / "figures.md", *(ROOT / "docs" / "figures").glob("*.md")}
    return sorted(path for path in found if path.suffix in SUFFIXES and path not in generated)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of all prose in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), token.start[0])


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings of modules, classes, functions and fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def findings(path: Path, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return what a file says in words that are replaced."""
    name, found = path.name, []
    for line, text in prose_of(path):
        for phrase in allowed:
            text = text.replace(phrase, "")  # noqa: PLW2901
        found += [
            f"{name}:{line}: {match[0]!r}: write {instead}"
            for pattern, instead in REPLACED.items()
            for match in re.finditer(pattern, text, re.IGNORECASE)
        ]
    if path.suffix == ".py":
        found += [
            f"{name}:{line}: begins with {text.split()[0]!r}: write {instead}"
            for line, text in docstrings_of(path)
            for opening, instead in OPENINGS.items()
            if re.match(opening, text)
        ]
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_uses_the_words_of_the_field(path: Path) -> None:
    assert findings(path, ALLOWED.get(str(path.relative_to(ROOT)), ())) == []


@pytest.mark.parametrize("line", ["# is told of it", '"""What is kept."""', 'X = "made anew"', "# the house rule"])
def test_a_planted_word_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(line)
    assert len(findings(tmp_path / "module.py")) == 1


@pytest.mark.parametrize("line", ["told = 1", '"""The route `beside`, or *beside*."""', 'ROUTE = "beside"'])
def test_names_and_values_are_not_prose(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(line)
    assert findings(tmp_path / "module.py") == []


def test_every_exception_is_used() -> None:
    for name, phrases in ALLOWED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [phrase for phrase in phrases if phrase not in text] == []
