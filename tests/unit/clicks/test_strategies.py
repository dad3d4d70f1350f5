"""Strategies: known answers of their sources, and what holds for all of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.clicks.pairs import DEFAULT_STRATEGY, STRATEGIES, PairConfig, read_text
from reranker.clicks.schema import Impression, ShownDocument
from tests.reference.click_steps import without_short_clicks
from tests.reference.strategies import (
    FUNCTIONS,
    clicked_over_next,
    clicked_over_previous,
    last_clicked_above_skipped,
    purchase_over_click,
)
from tests.unit.clicks.log_files import shown_as


def pairs(found: list[tuple[str, str]]) -> str:
    return " ".join(sorted(f"{better}>{worse}" for better, worse in found))


@pytest.mark.parametrize(
    ("name", "marks", "expected"),
    [
        ("clicked-over-unclicked", "-c-c-", "b>a b>c b>e d>a d>c d>e"),
        ("last-clicked-above-skipped", "-c-c-", "d>a d>c"),
        ("clicked-over-previous", "-c-c-", "b>a d>c"),
        ("clicked-over-next", "-c-c-", "b>c d>e"),
        ("clicked-over-previous", "-cc", "b>a"),
        ("clicked-over-next", "cc-", "b>c"),
        ("clicked-over-previous", "- c", ""),
        ("clicked-over-next", "c -", ""),
        ("last-clicked-above-skipped", "c--", ""),
        ("ssi-position-one", "c-c-", "a>b a>d"),
        ("ssi-position-one", "-c-c", "b>a d>a"),
        ("ssi-position-one", " c-", ""),
        ("ssi-position-one", "cc", ""),
        ("purchase-over-click", "cpk-c", "b>a b>c b>e c>a c>e"),
        ("purchase-over-click", "c-c", ""),
        ("purchase-over-click", "p-", ""),
    ],
)
def test_known_answers(name: str, marks: str, expected: str) -> None:
    assert pairs(FUNCTIONS[name](shown_as(marks))) == expected


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("marks", ["", "---", "-"])
def test_a_list_without_a_click_says_nothing(name: str, marks: str) -> None:
    assert FUNCTIONS[name](shown_as(marks)) == []


def test_the_last_click_is_the_lowest_whatever_the_clock_says() -> None:
    shown = (ShownDocument("a", 1), ShownDocument("b", 2, True, time=9), ShownDocument("c", 3, True, time=5))
    assert pairs(last_clicked_above_skipped(Impression("q", "text", shown))) == "c>a"


def test_a_cart_and_a_purchase_are_one_purchase() -> None:
    shown = (
        ShownDocument("a", 1, True, True, True),
        ShownDocument("b", 2, True, False, True),
        ShownDocument("c", 3, True),
    )
    assert pairs(purchase_over_click(Impression("q", "text", shown))) == "a>c b>c"


def test_short_clicks_take_their_documents_out_of_the_list() -> None:
    shown = (
        ShownDocument("a", 1),
        ShownDocument("b", 2, True, dwell=2.0),
        ShownDocument("c", 3, True, dwell=30.0),
        ShownDocument("d", 4, True, carted=True, dwell=1.0),
        ShownDocument("e", 5, True),
    )
    impression = Impression("q", "text", shown, "s", "u", "n", 3, "app", True)
    left = without_short_clicks(impression, 30.0)
    assert [one.document for one in left.shown] == ["a", "c", "d", "e"]
    assert left == dataclasses.replace(impression, shown=left.shown)
    assert pairs(clicked_over_previous(left)) == ""
    assert pairs(clicked_over_next(left)) == ""
    assert without_short_clicks(impression, 0.0) is impression


def test_the_default_is_the_rule_with_the_least_position_bias() -> None:
    assert PairConfig().strategy == DEFAULT_STRATEGY == "last-clicked-above-skipped"
    assert next(iter(STRATEGIES)) == DEFAULT_STRATEGY
    assert list(STRATEGIES) == list(FUNCTIONS)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_a_source_a_summary_and_a_text(name: str) -> None:
    assert STRATEGIES[name]
    assert "\n    Source: " in (FUNCTIONS[name].__doc__ or "")
    text = read_text(FUNCTIONS[name].__name__)
    assert text.startswith("-- ") and "better" in text and "worse" in text


@given(st.text("-ckp ", max_size=12))
def test_what_holds_for_every_strategy(marks: str) -> None:
    impression = shown_as(marks)
    clicked = {one.document for one in impression.clicked}
    found = {name: function(impression) for name, function in FUNCTIONS.items()}
    for name, preferences in found.items():
        assert len(set(preferences)) == len(preferences), name
        assert all(better in clicked for better, _ in preferences), name
        if name != "purchase-over-click":
            assert all(worse not in clicked for _, worse in preferences), name
    everything = set(found["clicked-over-unclicked"])
    above = {(better, worse) for better, worse in everything if worse < better}
    assert set(found["last-clicked-above-skipped"]) <= above <= everything
    assert set(found["clicked-over-previous"]) == {(b, w) for b, w in everything if ord(w) + 1 == ord(b)}
    assert set(found["clicked-over-next"]) == {(b, w) for b, w in everything if ord(w) - 1 == ord(b)}
    assert set(found["ssi-position-one"]) == {(b, w) for b, w in everything if "a" in (b, w)}
