"""Pictures and the report: equal bytes for equal numbers, nothing loaded from elsewhere, texts escaped."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from papers import report
from papers.rank_measures import roc_curve
from papers.registry import Picture, Section, Table, TaskRequest
from papers.report import orders_of, render_systems, write_report
from papers.results import Results

HOSTILE = '<script src="https://x.example/a.js">&"\''


def pictures() -> list[Picture]:
    rng = np.random.default_rng(0)
    positive = rng.random(200) < 0.5
    curves = {
        name: roc_curve(rng.normal(positive * shift, 1.0), positive) for name, shift in (("A", 1.0), (HOSTILE, 2))
    }
    values = {("one", "a"): [2.9, 3.1], ("ten", "a"): [1.9, 2.1]}
    sizes = Results("T9", {"a": "A"}, {place: {"loss": np.array(losses)} for place, losses in values.items()})
    return [
        report.lines("sizes", "By size", ("share", "loss"), sizes, {"one": 1, "ten": 10, "none": 100}, "loss"),
        report.scatter_plot(
            "ap", "By query", ("AP, A", f"AP, {HOSTILE}"), np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.5, 1])
        ),
        report.roc("roc", "ROC", curves),
    ]


def section() -> Section:
    table = Table(
        f"Systems {HOSTILE}",
        ("system", "rank loss", "p", "AP", "AP, paper", "seconds"),
        (
            ("TF-IDF", "1.62 ± 0.1 %", "", "0.329 ± 0.010", "0.33", "0.1"),
            (HOSTILE, "0.30 ± 0.1 %", "< .0001", "0.517 ± 0.011", "", "1,204"),
            ("broken (no library)", "", "", "", "", ""),
        ),
        "note",
    )
    return Section(
        "T1a", "Retrieval", ("A sentence " + HOSTILE,), (table, Table("empty", ("a",), ())), tuple(pictures())
    )


def test_equal_numbers_give_equal_bytes() -> None:
    for first, second in zip(pictures(), pictures(), strict=True):
        assert first.svg == second.svg and first.alt == second.alt


def test_pictures_are_xml_without_scripts_and_without_anything_from_elsewhere() -> None:
    for picture in pictures():
        for element in ElementTree.fromstring(picture.svg).iter():  # noqa: S314 - ours
            assert not element.tag.endswith("script")
            for name, value in element.attrib.items():
                assert not name.endswith(("href", "src")) or value.startswith("#")


def test_T13_the_scatter_counts_both_sides_of_the_diagonal() -> None:
    scatter = pictures()[1]
    assert "2 queries above the diagonal, 0 below, 1 on it" in scatter.alt
    assert b"above: 2" in scatter.svg and b"below: 0" in scatter.svg


def test_E09_roc_names_the_area_of_each_system() -> None:
    picture = pictures()[2]
    assert re.search(r"A: area 0\.7\d\d", picture.alt)


class _Page(HTMLParser):
    """Collects what a page would load, its tags and the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href", "action", "data") and not str(value).startswith("#"):
                self.loaded.append(str(value))


def page_of(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    return page


def test_the_report_opens_offline_and_without_scripts(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "report.html"
    write_report(
        [section()], path, [TaskRequest(tmp_path / "cppdocs", tmp_path, small=True)], "ssi reproduce T1a", "today"
    )
    text = path.read_text(encoding="utf-8")
    page = page_of(text)
    assert page.loaded == [] and "script" not in page.tags
    assert "default-src 'none'" in text
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert {one for one in re.findall(r'https?://[^"\'\s<&]+', text) if "x.example" not in one} <= names
    assert len(page.ids) == len(set(page.ids)), "ids of one page differ"
    assert page.tags.count("svg") == 3


def test_texts_are_escaped() -> None:
    text = render_systems([section()], [TaskRequest(Path("c"), Path("o"))])
    assert HOSTILE not in text and "&lt;script src=" in text


def test_the_report_says_what_was_run_and_whose_figures_are_whose() -> None:
    text = render_systems(
        [section()], [TaskRequest(Path("data/cppdocs"), Path("o"), seed=7, small=True)], "ssi reproduce T1a"
    )
    assert "cppdocs" in text and "<dd>7</dd>" in text and "ssi reproduce T1a" in text and "numpy" in text
    assert "the figures mean nothing" in text and "on other data" in text
    assert "the figures mean nothing" not in render_systems([section()], [TaskRequest(Path("c"), Path("o"))])


def test_tables_can_be_sorted_best_first_and_empty_cells_last() -> None:
    found = orders_of(section().tables[0])
    by_column = list(zip(*found, strict=True))
    assert by_column[1] == (1, 0, 2), "rank loss: small first"
    assert by_column[3] == (1, 0, 2), "AP: great first"
    assert by_column[5] == (0, 1, 2), "seconds: small first"
    assert by_column[2][1] == 0, "p: the only one first"
    assert orders_of(Table("x", ("a",), ())) == ()


def test_a_page_of_no_section_is_a_page() -> None:
    assert "</html>" in render_systems([], [TaskRequest(Path("c"), Path("o"))])


@pytest.mark.parametrize("count", [1, 3])
def test_every_section_has_its_place(count: int) -> None:
    sections = [Section(f"T{number}", "x") for number in range(count)]
    text = render_systems(sections, [TaskRequest(Path("c"), Path("o"))])
    assert all(f'href="#T{number}"' in text and f'id="T{number}"' in text for number in range(count))
