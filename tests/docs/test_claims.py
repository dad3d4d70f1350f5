"""Measured figures of the documentation are those of the results, and link to the section that shows them."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.claims import CLAIMS, SETTINGS, Claim, Number, Step

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "docs/model.md",
    "docs/reference.md",
    "docs/scale.md",
    "docs/systems.md",
    "docs/versions.md",
    "docs/guide/*.md",
    "plugin_scripts/README.md",
)
"""Pages of which every measured figure must be in `CLAIMS`."""
WORDED = {"half": 1 / 2, "a third": 1 / 3, "twice": 2.0}
"""Numbers written as words; they agree with a value that is at most a sixth larger or smaller."""
NUMBER = rf"([−+-]?(?:\d[\d,]*)?\.?\d+|{'|'.join(WORDED)})"
UNITS = r"(?:ms|µs|s|%|MAP|nDCG(?:@\d+)?|seconds|minutes|hours|bytes|KB|MB|GB|KiB|MiB|GiB|times)"
FIGURE = re.compile(
    rf"(?<![\w.^])(?:\d[\d,]*)?\.?\d+\s{UNITS}(?!\w)"
    rf"|(?<![\w.^/])(?:0?\.\d+)(?![\w.])"
    rf"|\b(?:half|third|quarter|fifth|tenth|two|three|four|five|six|eight|ten)\s(?:times|the\slatency|the\sthroughput)\b"
)
"""A number with the unit of a measurement, a fraction below one, or a multiple in words."""
GENERATED = re.compile(r"<!-- figures: .*?<!-- end of figures -->|```.*?```|^    .*?$", re.DOTALL | re.MULTILINE)
"""Parts of a page that are not sentences: the table that `make figures` writes, and code."""


def expression(words: str) -> re.Pattern[str]:
    """Return the expression of words with ``{}`` for numbers; white space matches any white space."""
    parts = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)) for part in words.split("{}")]
    return re.compile(NUMBER.join(parts))


def prose_of(text: str) -> str:
    """Return a page with its code and generated tables replaced by spaces, so that places stay."""
    return GENERATED.sub(lambda match: re.sub(r"\S", " ", match[0]), text)


def values_at(value: Any, path: tuple[Step, ...]) -> Iterator[float]:
    """Yield the numbers that a path leads to."""
    if not path:
        yield float(value)
        return
    step, rest = path[0], path[1:]
    if step == "*":
        found = list(value.values()) if isinstance(value, Mapping) else value
    elif isinstance(step, Mapping):
        found = [row for row in value if all(has(row, key, wanted) for key, wanted in step.items())]
    elif isinstance(step, tuple):
        found = [value[key] for key in step]
    else:
        found = [value[step]]
    for inner in found:
        yield from values_at(inner, rest)


def has(row: Mapping[str, Any], key: str, wanted: object) -> bool:
    """Return whether a row has a value, or one of several."""
    choices = wanted if isinstance(wanted, tuple) else (wanted,)
    return any((row.get(key) or type(choice)()) == choice for choice in choices)


def measured(number: Number, result: Any) -> float:
    """Return the value of a number in a result."""
    values = list(values_at(result, number.path))
    assert values, f"nothing stands at {number.path}"
    if number.pick == "only":
        assert len(values) == 1, f"{len(values)} values stand at {number.path}"
        return values[0] * number.factor
    ratio = values[-1] / values[0]
    picked = {"smallest": min(values), "largest": max(values), "ratio": ratio, "exponent": math.log10(ratio)}
    return picked[number.pick] * number.factor


def agrees(stated: str, value: float) -> bool:
    """Return whether a number of a sentence is the value, rounded as it is stated."""
    if stated in WORDED:
        return abs(value / WORDED[stated] - 1) <= 1 / 6
    number = stated.replace("−", "-").replace(",", "")
    whole, _, fraction = number.partition(".")
    if not fraction and whole.endswith("000"):
        return round(value, -3) == float(number)
    return round(value, len(fraction)) == float(number)


def section_of(result: str) -> str:
    """Return the address of a result's section in docs/figures, from the folder docs."""
    studies = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text(encoding="utf-8"))["study"]
    study = next(study for study in studies if study["file"] == result)
    anchor = re.sub(r"[^\w-]", "", study["title"].lower().replace(" ", "-"))
    return f"figures/{study['page']}.md#{anchor}"


def paragraph_at(text: str, place: int) -> str:
    """Return the paragraph, list item or row of a table at a place of a page."""
    starts = [match.end() for match in re.finditer(r"\n\n|\n(?=\||[-*] |\d+\. )|\A", text)] + [len(text) + 1]
    first = max(start for start in starts if start <= place)
    return text[first : min(start for start in starts if start > first)]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words[:40]}")
def test_a_measured_figure_is_that_of_its_result_and_links_to_it(claim: Claim) -> None:
    text = (ROOT / claim.page).read_text(encoding="utf-8")
    match = expression(claim.words).search(text)
    assert match is not None, f"{claim.page} no longer has the words {claim.words!r}: change tests/docs/claims.py"
    content = json.loads((ROOT / "benchmarks" / "results" / f"{claim.result}.json").read_text(encoding="utf-8"))
    assert len(claim.numbers) == len(match.groups())
    for stated, number in zip(match.groups(), claim.numbers, strict=True):
        value = measured(number, content)
        assert agrees(stated, value), f"{claim.page} states {stated}, {claim.result}.json has {value:.4g}"
    if claim.page.endswith(".md"):
        assert section_of(claim.result) in paragraph_at(text, match.start()), "link the paragraph to the section"


@pytest.mark.parametrize("result", sorted({claim.result for claim in CLAIMS}))
def test_the_section_that_a_claim_links_to_names_the_program_and_the_day(result: str) -> None:
    name, _, anchor = section_of(result).partition("#")
    sections = (ROOT / "docs" / name).read_text(encoding="utf-8").split("\n## ")[1:]
    by_anchor = {re.sub(r"[^\w-]", "", one.partition("\n")[0].lower().replace(" ", "-")): one for one in sections}
    about = json.loads((ROOT / "benchmarks" / "results" / f"{result}.json").read_text(encoding="utf-8"))["about"]
    said = by_anchor[anchor]
    assert about["date"] in said
    assert f"program {about['program']}" in said or re.search(r"measured with \d+ programs", said)


def corpora_of(claim: Claim) -> set[str]:
    """Return the corpora whose rows a claim is about, without the numbers of queries that follow their names."""
    steps = [step for number in claim.numbers for step in number.path if isinstance(step, Mapping) and "corpus" in step]
    wanted = [step["corpus"] for step in steps]
    names = {name for one in wanted for name in (one if isinstance(one, tuple) else (one,))}
    return {re.sub(r"-\d+$", "", str(name)) for name in names}


ABOUT_A_CORPUS = [claim for claim in CLAIMS if corpora_of(claim)]


@pytest.mark.parametrize("claim", ABOUT_A_CORPUS, ids=lambda claim: f"{claim.page}: {claim.words[:40]}")
def test_a_claim_about_a_corpus_names_it(claim: Claim) -> None:
    text = (ROOT / claim.page).read_text(encoding="utf-8")
    match = expression(claim.words).search(text)
    assert match is not None
    paragraph = paragraph_at(text, match.start())
    assert [corpus for corpus in sorted(corpora_of(claim)) if corpus not in paragraph] == []


def figures_without_a_claim(page: str, text: str) -> list[str]:
    """Return the figures of a page, each with the words around it, that are neither a claim nor a setting."""
    prose = prose_of(text)
    known = [
        match.span()
        for words in [one.words for one in (*CLAIMS, *SETTINGS) if one.page == page]
        for match in expression(words).finditer(text)
    ]
    return [
        " ".join(prose[max(0, found.start() - 40) : found.end() + 20].split())
        for found in FIGURE.finditer(prose)
        if not any(first <= found.start() < last for first, last in known)
    ]


@pytest.mark.parametrize("path", sorted(path for page in PAGES for path in ROOT.glob(page)), ids=lambda path: path.name)
def test_every_measured_figure_of_a_page_is_a_claim(path: Path) -> None:
    page = path.relative_to(ROOT).as_posix()
    unknown = figures_without_a_claim(page, path.read_text(encoding="utf-8"))
    assert not unknown, f"{page}: add these figures to CLAIMS or SETTINGS of tests/docs/claims.py: {unknown}"


def test_settings_are_on_their_pages() -> None:
    missing = [
        setting.words
        for setting in SETTINGS
        if not expression(setting.words).search((ROOT / setting.page).read_text(encoding="utf-8"))
    ]
    assert not missing


def test_a_new_figure_and_a_changed_one_are_found() -> None:
    page = "A search takes 7 ms more, .3 of it in the engine, and 12 % of them\nthree times as long.\n\n    wait 9 ms\n"
    assert len(figures_without_a_claim("README.md", page)) == 4
    assert agrees(".219", 0.21872) and not agrees(".218", 0.21872)
    assert agrees("1,377", 1376.81) and not agrees("1,376", 1376.81)
    assert agrees("half", 0.55) and not agrees("half", 0.6)
