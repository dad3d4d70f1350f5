"""Ranking tasks: what takes part, what does not, and the test tuples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.errors import InputError
from reranker.evaluation import Links, draw_tuples, link_task, qrels_task, without_reverse
from tests.seeds import seeded_rng

POOL = ["a", "b", "c", "d", "e"]
NAMES = st.sampled_from([*POOL, "x", "y"])
LINKS = st.lists(st.tuples(NAMES, NAMES), max_size=25)


@given(links=LINKS)
def test_links_in_columns_are_the_same_links(links: list[tuple[str, str]]) -> None:
    columns = Links.of(iter(links))
    assert list(columns) == links and len(columns) == len(links)
    assert list(columns.distinct()) == list(dict.fromkeys(links))
    assert columns.ids == tuple(dict.fromkeys(id_ for link in links for id_ in link))
    assert Links.of(columns) is columns
    chosen = np.arange(len(links)) % 2 == 1
    assert list(columns.part(chosen)) == links[1::2]
    source, target = columns.numbered({"a": 7}, {"b": 3, "x": 0})
    assert source.tolist() == [7 if name == "a" else -1 for name, _ in links]
    assert target.tolist() == [{"b": 3, "x": 0}.get(name, -1) for _, name in links]


def test_link_task_on_a_small_example() -> None:
    links = [("b", "c"), ("b", "a"), ("a", "b"), ("b", "c"), ("d", "d"), ("x", "a"), ("a", "x"), ("e", "a")]
    task = link_task(links, known=[("b", "d"), ("e", "a"), ("b", "x")], pool=POOL)
    assert task.query_ids == ("a", "b")
    assert task.document_ids == tuple(POOL)
    assert task.grades.toarray().tolist() == [[0, 1, 0, 0, 0], [1, 0, 1, 0, 0]]
    assert task.excluded.toarray().tolist() == [[True, False, False, False, False], [False, True, False, True, False]]
    assert task.dropped == {
        "link to itself": 1,
        "source is no known document": 1,
        "target not in the pool": 1,
        "also a known link": 1,
    }


def test_queries_may_stand_outside_of_the_pool() -> None:
    task = link_task([("x", "a")], known=[], pool=POOL, query_ids=["x", *POOL])
    assert task.query_ids == ("x",)
    assert task.excluded.nnz == 0


@given(links=LINKS, known=LINKS)
@settings(max_examples=100)
def test_link_task_rules_hold(links: list[tuple[str, str]], known: list[tuple[str, str]]) -> None:
    try:
        task = link_task(links, known, POOL)
    except InputError:
        assert not any(s in POOL and t in POOL and s != t and (s, t) not in known for s, t in links)
        return
    relevant, excluded = task.grades.toarray() > 0, task.excluded.toarray()
    assert not (relevant & excluded).any()
    for row, query in enumerate(task.query_ids):
        assert excluded[row, POOL.index(query)]
        for column, document in enumerate(task.document_ids):
            assert relevant[row, column] == (
                (query, document) in links and query != document and (query, document) not in known
            )
            assert excluded[row, column] == (query == document or (query, document) in known)
    assert relevant.any(axis=1).all()


def test_no_usable_link_says_why() -> None:
    with pytest.raises(InputError, match="target not in the pool: 2"):
        link_task([("a", "x"), ("b", "y")], [], POOL)


def test_qrels_task_keeps_zero_grades_as_judgements() -> None:
    qrels = {"q2": {"a": 0.0, "x": 1.0}, "q1": {"c": 3.0, "b": 1.0}, "no text": {"a": 1.0}}
    task = qrels_task(qrels, ["q1", "q2", "q3"], POOL, known=[("q1", "b")])
    assert task.query_ids == ("q1", "q2")
    assert task.grades.nnz == 2
    assert task.relevant().toarray().tolist() == [[False, False, True, False, False], [False] * 5]
    assert task.excluded.toarray()[0].tolist() == [False, True, False, False, False]
    assert task.dropped == {
        "judged document not in the pool": 1,
        "judgement of a known pair": 1,
        "judged query without a text": 1,
    }


@given(links=LINKS, known=LINKS, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_tuples_are_legal(links: list[tuple[str, str]], known: list[tuple[str, str]], seed: int) -> None:
    try:
        task = link_task(links, known, POOL)
    except InputError:
        return
    tuples = draw_tuples(task, np.random.default_rng(seed), 40)
    relevant, excluded = task.grades.toarray() > 0, task.excluded.toarray()
    assert relevant[tuples.query, tuples.positive].all()
    assert not (relevant | excluded)[tuples.query, tuples.negative].any()
    assert (np.diff(tuples.query) >= 0).all()
    assert len(tuples.query) == (40 if (~(relevant | excluded)).any(axis=1).any() else 0)


def test_tuples_are_uniform_over_queries_then_over_what_is_allowed() -> None:
    task = link_task([("a", "b"), ("b", "c"), ("b", "d")], [("a", "c")], POOL)
    tuples = draw_tuples(task, seeded_rng(), 40_000)
    assert np.bincount(tuples.query) / 40_000 == pytest.approx([0.5, 0.5], abs=0.02)
    of_b = tuples.query == 1
    assert np.bincount(tuples.positive[of_b], minlength=5) / of_b.sum() == pytest.approx([0, 0, 0.5, 0.5, 0], abs=0.02)
    assert np.bincount(tuples.negative[of_b], minlength=5) / of_b.sum() == pytest.approx([0.5, 0, 0, 0, 0.5], abs=0.02)
    assert np.bincount(tuples.negative[~of_b], minlength=5) / (~of_b).sum() == pytest.approx(
        [0, 0, 0, 0.5, 0.5], abs=0.02
    )


def test_the_same_seed_draws_the_same_tuples() -> None:
    task = link_task([("a", "b"), ("b", "c")], [], POOL)
    first, second = (draw_tuples(task, np.random.default_rng(5), 100) for _ in range(2))
    assert np.array_equal(first.negative, second.negative)
    assert not np.array_equal(first.negative, draw_tuples(task, np.random.default_rng(6), 100).negative)


def test_without_reverse_removes_those_links_from_the_ranking() -> None:
    task = link_task([("a", "b"), ("a", "c"), ("d", "e")], [("a", "e")], POOL)
    smaller = without_reverse(task, [("b", "a"), ("e", "d"), ("c", "b")])
    assert smaller.query_ids == ("a",)
    assert smaller.grades.toarray().tolist() == [[0, 0, 1, 0, 0]]
    assert smaller.excluded.toarray().tolist() == [[True, True, False, False, True]]
    assert smaller.dropped["reverse is a known link"] == 2


def test_rows_and_columns_select() -> None:
    task = link_task([("a", "b"), ("b", "c"), ("c", "d")], [], POOL)
    part = task.rows(np.array([0, 2])).columns(np.array([1, 3]))
    assert part.query_ids == ("a", "c")
    assert part.document_ids == ("b", "d")
    assert part.grades.toarray().tolist() == [[1, 0], [0, 1]]
