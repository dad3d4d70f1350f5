"""Links, judgements and pairs as preferences, and the sides they are split into."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from reranker.errors import ConfigError, TrainingError
from reranker.evaluation import Links
from reranker.records import Pair
from reranker.training.training_set import (
    MIN_VALIDATION,
    Preference,
    Preferences,
    Split,
    TrainingSet,
    asks_for_unseen,
    from_judgements,
    from_links,
    from_pairs,
    mix,
    part_to_judge_by,
    split_training_set,
)

IDS = [f"d{i:03}" for i in range(300)]


def random_links(n: int, seed: int = 1) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [(IDS[a], IDS[b]) for a, b in rng.integers(0, len(IDS), (n, 2)).tolist()]


def split(evidence: TrainingSet, valid: TrainingSet | None = None, seed: int = 3) -> Split:
    return split_training_set(evidence, valid, IDS, np.random.default_rng(seed))


def test_links_once_each_and_none_to_itself() -> None:
    evidence = from_links([("a", "b"), ("a", "a"), ("b", "a"), ("a", "b"), ("a", "c")])
    assert list(evidence.links()) == [("a", "b"), ("b", "a"), ("a", "c")]
    assert evidence.query_ids == ("a", "b")
    assert evidence.texts is None


def test_preferences_in_columns_are_the_same_preferences() -> None:
    rows = [
        Preference("q", "a", ("b", "c"), 2.0, 0.5),
        Preference("a", "q"),
        Preference("q", "c", ("a",), 0.25),
        Preference("r", "c", ("q", "r")),
    ]
    columns = Preferences.of(iter(rows))
    assert list(columns) == rows
    assert list(columns.queries()) == ["q", "a", "r"]
    for chosen in ([True, False, False, True], [False] * 4, [True] * 4):
        expected = [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]
        assert list(columns.part(np.array(chosen))) == expected
    links = Preferences.of_links(Links.of([("x", "a"), ("a", "b"), ("q", "a")]))
    assert list(links.part(np.array([True, False, True]))) == [Preference("x", "a"), Preference("q", "a")]
    assert list(Preferences.joined([columns, links, columns])) == [*rows, *links, *rows]
    assert list(Preferences.joined([])) == []
    assert columns != links and columns != Preferences.of(rows[:3]) and columns == Preferences.of(rows)
    other = [row._replace(query={"q": "a"}.get(row.query, row.query)) for row in rows]
    assert list(columns.asking({"q": "a", "gone": "b"})) == other
    asks, answers = columns.are_in({"q", "c"})
    assert (asks.tolist(), answers.tolist()) == ([True, False, True, False], [False, True, True, True])


def test_links_take_bytes_and_no_objects() -> None:
    n = 200_000
    numbers = np.random.default_rng(1).integers(0, len(IDS), (n, 2))
    tracemalloc.start()
    evidence = from_links((IDS[a], IDS[b]) for a, b in numbers)
    found = split(evidence)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The links, and once more the two sides of them: 8 bytes each.
    assert len(evidence.preferences) > 70_000
    n_links = sum(len(one.preferences) for one in (evidence, found.train, found.valid))
    assert held < 8.5 * n_links + 100_000


def test_judgements_put_each_relevant_document_above_lower_grades() -> None:
    grades = {"q": {"best": 2, "good": 1, "bad": 0, "awful": -1}, "textless": {"best": 1}, "hopeless": {"bad": 0}}
    evidence = from_judgements(grades, {"q": "words", "hopeless": "more words"})
    assert set(evidence.preferences) == {
        Preference("q", "best", ("awful", "bad", "good")),
        Preference("q", "good", ("awful", "bad")),
    }
    assert set(evidence.grades) == {"q", "hopeless"}


def test_pairs_of_one_query_and_better_document_are_one_preference() -> None:
    evidence = from_pairs(
        [Pair("red shoes", "a", "b", 1.0), Pair("red shoes", "a", "c", 3.0), Pair("red shoes", "b", "c", 1.0)]
    )
    assert tuple(evidence.preferences) == (
        Preference("red shoes", "a", ("b", "c"), 2.0),
        Preference("red shoes", "b", ("c",), 1.0),
    )
    assert evidence.texts == {"red shoes": "red shoes"}
    assert evidence.grades == {"red shoes": {"a": 1.0, "b": 1.0, "c": 0.0}}


def test_of_two_opposite_pairs_the_difference_counts() -> None:
    evidence = from_pairs([Pair("q", "a", "b", 1.0), Pair("q", "b", "a", 3.0), Pair("r", "a", "b", 0.5)])
    assert tuple(evidence.preferences) == (Preference("q", "b", ("a",), 2.0), Preference("r", "a", ("b",), 0.5, 0.5))
    assert evidence.grades == {"q": {"a": 0.0, "b": 1.0}, "r": {"a": 1.0, "b": 0.0}}


def test_equally_heavy_opposite_pairs_say_nothing() -> None:
    evidence = from_pairs([Pair("q", "a", "b", 0.1), Pair("q", "b", "a", 0.3), Pair("q", "a", "b", 0.2)])
    assert tuple(evidence.preferences) == ()
    assert evidence.grades == {"q": {"a": 0.0, "b": 0.0}}


def test_repeated_pairs_add_up() -> None:
    evidence = from_pairs([Pair("q", "a", "b", 1.0), Pair("q", "a", "c", 1.0), Pair("q", "a", "b", 2.0)])
    assert tuple(evidence.preferences) == (Preference("q", "a", ("b", "c"), 2.0),)


def test_a_split_by_documents_shares_no_document() -> None:
    found = split(from_links(random_links(4_000)))
    assert found.kind == "documents" and found.unseen_documents
    assert len(found.held_out) == 60
    assert found.pool == found.held_out
    assert {d for link in found.train.links() for d in link}.isdisjoint(found.held_out)
    assert {d for link in found.valid.links() for d in link} <= found.held_out
    assert len(found.valid.preferences) >= MIN_VALIDATION


def test_few_links_are_split_by_link() -> None:
    links = random_links(1_000)
    found = split(from_links(links))
    assert found.kind == "links" and not found.unseen_documents and not found.held_out
    assert len(found.valid.preferences) == 150
    assert sorted([*found.train.links(), *found.valid.links()]) == sorted(from_links(links).links())
    assert found.pool == frozenset(IDS)


@pytest.mark.parametrize(("n_queries", "n_held_out"), [(90, 30), (600, 150), (3_000, 300)])
def test_of_few_queries_a_larger_share_is_held_out(n_queries: int, n_held_out: int) -> None:
    texts = {f"q{number}": f"thing {number}" for number in range(n_queries)}
    found = split(from_judgements({query: {"d000": 1.0} for query in texts}, texts))
    assert (len(found.train.query_ids), len(found.valid.query_ids)) == (n_queries - n_held_out, n_held_out)


@pytest.mark.parametrize(("asked", "unseen"), [(["d000", "d001"], False), (["d001", "d002"], True)])
def test_validation_may_ask_for_documents_that_training_does_not_know(asked: list[str], unseen: bool) -> None:
    texts = {"q": "one", "r": "two"}
    known = from_judgements({"q": {"d000": 1.0, "d001": 0.0}}, texts)
    assert asks_for_unseen(known, from_judgements({"r": dict.fromkeys(asked, 1.0)}, texts)) == unseen
    links = from_links([("d000", "d005")])
    assert asks_for_unseen(links, from_links([("d007", document) for document in asked])) == unseen


def test_splits_depend_on_the_seed_alone() -> None:
    for n in (1_000, 4_000):
        evidence = from_links(random_links(n))
        assert split(evidence, seed=5) == split(evidence, seed=5)
        assert split(evidence, seed=5) != split(evidence, seed=6)


def test_queries_of_equal_text_stay_on_one_side() -> None:
    texts = {f"q{i}": ("Red  Shoes", "red shoes", f"thing {i // 3}")[i % 3] for i in range(90)}
    evidence = from_judgements({query: {"d000": 1.0, "d001": 0.0} for query in texts}, texts)
    for seed in range(20):
        found = split(evidence, seed=seed)
        sides = [{" ".join(texts[q].lower().split()) for q in side.query_ids} for side in (found.train, found.valid)]
        assert sides[0] and sides[1] and sides[0].isdisjoint(sides[1])
        assert set(found.valid.grades) == set(found.valid.query_ids)
        assert len(found.train.query_ids) + len(found.valid.query_ids) == 90
    assert found.kind == "queries"


@pytest.mark.parametrize(
    "evidence",
    [from_links([("a", "b")]), from_pairs([Pair("q", "a", "b"), Pair("Q ", "a", "c")])],
    ids=["one link", "one query"],
)
def test_too_little_to_split(evidence: TrainingSet) -> None:
    with pytest.raises(TrainingError, match="at least 2"):
        split(evidence)


def test_given_links_between_known_documents() -> None:
    links = random_links(2_000)
    found = split(from_links(links), from_links(random_links(50, seed=2)))
    assert found.kind == "given" and not found.unseen_documents
    assert not found.held_out and found.pool == frozenset(IDS)


def test_given_links_between_unseen_documents() -> None:
    links = random_links(4_000)
    train = [link for link in links if link[0] < "d200" and link[1] < "d200"]
    valid = [link for link in links if link[0] >= "d200" and link[1] >= "d200"]
    found = split(from_links(train), from_links(valid))
    assert found.kind == "documents" and found.unseen_documents
    assert found.pool == found.held_out == frozenset(IDS[200:])


def shares(evidence: TrainingSet) -> tuple[float, float]:
    """Return the weight of what asks texts and of what asks documents, as shares."""
    asked, linked = (sum(p.weight for p in part) for part in (evidence.preferences, evidence.linked))
    return asked / (asked + linked), linked / (asked + linked)


def test_each_part_of_a_mixture_gets_its_share_however_large_it_is() -> None:
    clicks = from_pairs([Pair(f"query {i}", IDS[i], IDS[i + 1], float(1 + i % 3)) for i in range(200)])
    links = from_links([("d000", "d001"), ("d002", "d003")])
    judged = from_judgements({"q1": {"d000": 2.0, "d001": 0.0}}, {"q1": "red shoes"})
    mixed = mix((clicks, 2.0), (links, 1.0), (judged, 5.0))
    assert shares(mixed) == pytest.approx((7 / 8, 1 / 8))
    assert mixed.n_preferences == 203
    of_judges = sum(p.weight for p in mixed.preferences if p.query == "red shoes")
    assert of_judges / sum(p.weight for p in (*mixed.preferences, *mixed.linked)) == pytest.approx(5 / 8)
    # Within a part, preferences keep their proportions.
    of_clicks = [p.weight for p in mixed.preferences if p.query != "red shoes"]
    np.testing.assert_allclose(np.array(of_clicks) / of_clicks[0], [p.weight for p in clicks.preferences])
    assert mixed.document_queries == {"d000", "d002"}
    assert mixed.texts is not None and mixed.texts["red shoes"] == "red shoes"


def test_queries_of_one_text_become_one_and_the_earlier_grades_hold() -> None:
    judged = from_judgements({"7": {"a": 0.0, "b": 3.0}}, {"7": "red  shoes "})
    clicks = from_pairs([Pair("red shoes", "a", "c"), Pair("7", "a", "c")])
    mixed = mix((judged, 1.0), (clicks, 1.0))
    assert mixed.query_ids == ("red shoes", "7")
    assert mixed.grades == {"red shoes": {"a": 0.0, "b": 3.0, "c": 0.0}, "7": {"a": 1.0, "c": 0.0}}
    assert mix((clicks, 1.0), (judged, 1.0)).grades["red shoes"]["a"] == 1.0


def test_queries_that_differ_in_case_become_one_with_the_first_text() -> None:
    judged = from_judgements({"7": {"a": 0.0, "b": 3.0}}, {"7": "Red Shoes"})
    clicks = from_pairs([Pair("red shoes", "a", "c")])
    mixed = mix((judged, 1.0), (clicks, 1.0))
    assert mixed.texts == {"Red Shoes": "Red Shoes"} and mixed.query_ids == ("Red Shoes",)
    assert mixed.grades == {"Red Shoes": {"a": 0.0, "b": 3.0, "c": 0.0}}
    assert {preference.query for preference in mixed.preferences} == {"Red Shoes"}


def test_links_alone_stay_links() -> None:
    mixed = mix((from_links([("a", "b")]), 1.0), (from_links([("b", "c"), ("c", "a")]), 4.0))
    assert mixed.texts is None and not mixed.linked
    assert [(p.query, p.better, p.weight) for p in mixed.preferences] == [
        ("a", "b", 1.0),
        ("b", "c", 2.0),
        ("c", "a", 2.0),
    ]


def test_a_mixture_can_be_mixed_again() -> None:
    inner = mix((from_pairs([Pair("q", "a", "b")]), 1.0), (from_links([("a", "b")]), 1.0))
    outer = mix((inner, 1.0), (from_links([("b", "c")]), 1.0))
    assert shares(outer) == pytest.approx((0.25, 0.75))


def test_parts_without_weight_or_preference_are_left_out() -> None:
    links, nothing = from_links([("a", "b")]), from_pairs([])
    assert mix((links, 1.0), (nothing, 1.0), (from_pairs([Pair("q", "a", "b")]), 0.0)) == links
    assert mix((nothing, 1.0)).n_preferences == 0


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_of_a_mixture(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight of evidence"):
        mix((from_links([("a", "b")]), weight))


def test_links_of_a_mixture_are_never_validated_on() -> None:
    clicks = from_pairs([Pair(f"query {i}", IDS[i], IDS[i + 1]) for i in range(50)])
    links = from_links(random_links(100))
    found = split(mix((clicks, 1.0), (links, 1.0)))
    assert found.kind == "queries"
    assert len(found.train.linked) == len(links.preferences)
    assert not found.valid.linked
    assert len(found.train.preferences) + len(found.valid.preferences) == 50


def judged(n_texts: int, n_each: int = 3) -> TrainingSet:
    """Return judgements of several queries of each of some texts, which differ in case and white space."""
    texts = {
        f"q{i}-{k}": " ".join([f"Text{i}", "x"]) + " " * k if k else f"text{i} X"
        for i in range(n_texts)
        for k in range(n_each)
    }
    return from_judgements({query: {IDS[1]: 1.0, IDS[2]: 0.0} for query in texts}, texts)


def test_queries_of_one_text_choose_or_judge_together() -> None:
    valid = judged(60)
    choosing, judging, apart = part_to_judge_by(valid, IDS, np.random.default_rng(1))
    assert apart
    sides = [{query.partition("-")[0] for query in side.query_ids} for side in (choosing, judging)]
    assert not sides[0] & sides[1]
    assert [len(side) for side in sides] == [40, 20]
    assert len(choosing.query_ids) + len(judging.query_ids) == len(valid.query_ids) == 180
    assert set(judging.grades) == set(judging.query_ids)
    assert part_to_judge_by(valid, IDS, np.random.default_rng(1))[1] == judging
    assert part_to_judge_by(valid, IDS, np.random.default_rng(2))[1] != judging


def test_of_many_queries_some_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    valid = judged(60)
    for most, n in ((20, 20), (19, 19), (1, 1)):
        monkeypatch.setattr("reranker.training.training_set.MAX_JUDGING", most)
        choosing, judging, _ = part_to_judge_by(valid, IDS, np.random.default_rng(1))
        assert len({query.partition("-")[0] for query in judging.query_ids}) == n
        assert len(choosing.query_ids) + len(judging.query_ids) == 180


def test_queries_that_nothing_answers_stand_on_neither_side() -> None:
    unknown = from_links([(f"x{k}", IDS[k]) for k in range(50)] + [(IDS[k], f"x{k}") for k in range(50)])
    assert part_to_judge_by(unknown, IDS, np.random.default_rng(1)) == (unknown, unknown, False)
    known = [(IDS[k], IDS[-1 - k]) for k in range(60)]
    choosing, judging, _ = part_to_judge_by(from_links([*unknown.links(), *known]), IDS, np.random.default_rng(1))
    sources = set(choosing.query_ids) | set(judging.query_ids)
    assert sources == {source for source, _ in known}
    assert len(judging.query_ids) == 20


def test_links_of_one_source_choose_or_judge_together() -> None:
    valid = from_links(random_links(400))
    choosing, judging, apart = part_to_judge_by(valid, IDS, np.random.default_rng(1))
    assert apart
    assert not set(choosing.query_ids) & set(judging.query_ids)
    assert sorted([*choosing.links(), *judging.links()]) == sorted(valid.links())


@pytest.mark.parametrize(("n", "apart"), [(39, False), (40, True)])
def test_few_queries_choose_and_judge(n: int, apart: bool) -> None:
    for valid in (judged(n), from_links((IDS[k], IDS[-1]) for k in range(n))):
        choosing, judging, are_two = part_to_judge_by(valid, IDS, np.random.default_rng(1))
        assert are_two == apart
        if not apart:
            assert choosing is judging is valid
