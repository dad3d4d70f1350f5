"""The report: complete, offline, the same for the same findings, and safe whatever people typed."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.accounts import LeftOut
from reranker.clicks.propensities import Propensities
from reranker.retrain import report
from reranker.retrain.gate import Check, GateVerdict, Measured, QueryChange
from reranker.retrain.history import History
from reranker.retrain.report import render_retraining
from reranker.retrain.result import RetrainResult
from reranker.retrain.served_ranks import ServedComparison
from reranker.retrain.statistics import Interval
from reranker.training.form_choice import FormChoice, ScoreForm
from reranker.training.train import MemoryChoice, TrainingReport
from reranker.training.trainer import Epoch, TrainResult
from reranker.training.training_set import Split, from_links
from reranker.words import WordPair

NASTY = "<script>alert(1)</script> \"quoted\" & 'x' {{ 7*7 }} \u202e"
CHANGES = {"queries": 10, "reordered": 0.5, "new_first": 0.25, "mean_overlap": 0.8}
VOID = {"meta", "link", "br", "hr", "img", "input"}


def interval(estimate: float) -> Interval:
    return Interval(estimate, estimate - 0.01, estimate + 0.01, 0.005, 200, 150.0, 120)


def verdict(promoted: bool = True) -> GateVerdict:
    change = QueryChange(NASTY, 12, 0.4, 0.2, -0.003)
    return GateVerdict(
        promoted,
        (Check("enough", True, "200 people"), Check("better", promoted, "clicks nDCG: 0.4 to 0.5")),
        (
            Measured("clicks nDCG", 0.4, 0.5, interval(0.1)),
            Measured("clicks RR", 0.3, 0.29, interval(-0.01)),
            Measured("clicks nDCG of a random order", 0.4, 0.3, interval(-0.1), ("random", "live")),
        ),
        (change,),
        (replace(change, query="good query", share=0.01),),
        (change,),
        300,
        400,
        5,
    )


def findings(**changes: Any) -> dict[str, Any]:
    data = {
        "learned": 1000,
        "judged": 300,
        "undated": 4,
        "cutoff": 1_767_918_064_102,
        "first": 1_767_225_709_097,
        "last": 1_768_088_136_891,
        "people": 200,
        "pairs": 900,
        "other": 50,
        "documents": 90,
        "dropped": {"no_click": 7, NASTY: 1},
    }
    result = RetrainResult(
        "promoted",
        "Better.",
        NASTY,
        "a" * 64,
        "b" * 64,
        "a" * 64,
        "b" * 64,
        "c" * 64,
        Path("models/bbbbbbbbbbbb"),
        data,
        {},
        90,
        {"train": 1.5},
    )
    curve = [Epoch(n, 0.5 / n, 3.0, 0.4, 0.1 * n, 0.1, 1.0) for n in (1, 2, 3)]
    U = np.zeros((1, 1), np.float32)
    nothing = from_links([("a", "b")])
    words, learned = ScoreForm(memory=False, learned=False), ScoreForm(memory=False, learned=True)
    form = FormChoice(learned, 9, False, words, {words: {"AP": 0.1}, learned: {"AP": 0.3}}, {}, "Learned.")
    training = TrainingReport(
        "queries",
        1.0,
        TrainResult(U, U, 3, 0.3, curve),
        (LeftOut(NASTY, 2),),
        Split("queries", nothing, nothing, frozenset(), frozenset()),
        form,
        memory=MemoryChoice(True, "queries remembered: on"),
    )
    history = History(0, 0, 0, 0, 0, [100, 90], [50, 9], Propensities((1.0, 0.4)), "em, from 100 lists")
    comparison = ServedComparison(verdict(), 0, {}, (-0.2, 0.1, 0.3), CHANGES)
    parts: dict[str, Any] = {
        "result": result,
        "engine": "tantivy:index",
        "finished": "2026-11-21T08:00:00+00:00",
        "training": training,
        "history": history,
        "comparison": comparison,
        "examples": {NASTY: {"live": [NASTY, "two"], "new": ["two", NASTY]}},
        "strongest": [WordPair(NASTY, "word", 1.5, 0.0)],
        "changed": [WordPair("w", "v", -1.5, 0.2)],
        "warnings": [NASTY],
        "settings": {"strategy": NASTY},
    }
    return parts | changes


class Page(HTMLParser):
    """Reads a page strictly: every element closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return render_retraining(**findings())


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert "script" not in page.tags
    assert not {"img", "iframe", "link", "object", "embed", "base", "form"} & set(page.tags)
    references = [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "action")]
    assert references
    assert all(value and value.startswith("#") for value in references)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "@import" not in html
    assert "Queries remembered: on." in html
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", html))
    assert {value[1:] for value in references if value} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_what_people_typed_is_shown_as_text(html: str) -> None:
    page = Page(html)
    assert "".join(page.texts).count("<script>alert(1)</script>") >= 8
    assert "{{ 7*7 }}" in "".join(page.texts)
    assert " 49 " not in "".join(page.texts)


@pytest.mark.parametrize("part", ["gate", "queries", "changes", "words", "learning", "clicks", "data"])
def test_every_part_is_there_and_linked(part: str, html: str) -> None:
    page = Page(html)
    assert part in page.ids
    assert ("href", f"#{part}") in page.attributes


def test_numbers_of_the_findings_are_shown(html: str) -> None:
    text = " ".join("".join(Page(html).texts).split())
    for shown in (
        "Promoted: model bbbbbbbbbbbb",
        "200 people",
        "+0.1000",
        "−0.0100",
        "em, from 100 lists",
        "+1.500",
        "50.0 %",
        "900",
        "2026-01-09 00:21",
        "0.100",
        "5 shown documents no longer exist",
    ):
        assert shown in text, shown
    assert "random order" not in text
    assert len([tag for tag in Page(html).tags if tag == "svg"]) == 4


def test_a_refusal_and_a_run_without_anything_to_show() -> None:
    nothing = ServedComparison(GateVerdict(False, (Check("enough", False, "too few"),), ()), 0, {}, (), CHANGES)
    empty = findings(
        history=History(0, 0, 0, 0, 0),
        comparison=nothing,
        examples={},
        strongest=[],
        changed=[],
        warnings=[],
        settings={},
    )
    refused = replace(empty["result"], outcome="refused", live_before=None, live_after=None)
    page = Page(render_retraining(**(empty | {"result": refused})))
    text = " ".join("".join(page.texts).split())
    assert page.open == []
    assert "Refused: model" in text
    assert "No query lost." in text
    assert ("class", "page refused") in page.attributes


def test_equal_findings_give_equal_bytes() -> None:
    assert render_retraining(**findings()) == render_retraining(**findings())


def test_one_far_rank_does_not_draw_all_before_it() -> None:
    rates = [([4] * n, [1] * n, [1.0, 0.5]) for n in (report.MAX_RANKS, 10 * report.MAX_RANKS)]
    assert report.click_rates(*rates[0]) == report.click_rates(*rates[1])
