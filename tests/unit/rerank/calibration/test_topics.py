"""Topics: from judgments and links, drawn by a seed, and without the queries of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from reranker.accounts import InputAccount, LeftOut
from reranker.engines.stored_ids import IdCheck
from reranker.errors import ConfigError, InputError
from reranker.models.training_queries import TrainingQueries
from reranker.rerank.calibration.topics import Topic, sample, topics_of_links, topics_of_qrels, topics_to_fit
from tests.served import Served


def test_topics_of_judgements(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1\ta\t2\nq1\tb\t0\nq2\tc\t0\nq3\td\t1\n")
    (tmp_path / "queries").write_text("q1\tred shoe\nq2\tblue\nq4\tgreen\nq3\tgrey\n")
    accounts: list[InputAccount] = []
    topics = topics_of_qrels(tmp_path / "qrels", tmp_path / "queries", check=IdCheck(accounts.append))
    assert accounts == [InputAccount("judgments", 4)]
    assert topics == [Topic("red shoe", {"a": 2.0, "b": 0.0}), Topic("grey", {"d": 1.0})]
    (tmp_path / "other").write_text("z\tred\n")
    with pytest.raises(InputError, match="query ids of both files"):
        topics_of_qrels(tmp_path / "qrels", tmp_path / "other", check=IdCheck(accounts.append))
    assert accounts[1] == InputAccount("judgments", 0, (LeftOut("unknown query id", 4, ("q1", "q2", "q3")),))


def test_judgments_without_a_relevant_document_are_refused(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1\ta\t0\nq2\tb\t0\n")
    (tmp_path / "queries").write_text("q1\tred shoe\nq2\tblue\n")
    with pytest.raises(InputError, match="must have a grade above 0"):
        topics_of_qrels(tmp_path / "qrels", tmp_path / "queries")


def test_topics_of_links(served: Served, tmp_path: Path) -> None:
    (tmp_path / "links").write_text("a\tb\na\tc\na\ta\nb\tc\nz\ta\ne\ta\n")
    (tmp_path / "docs").write_text(
        '{"id": "a", "title": "Running shoes", "text": "They run. They run fast!"}\n'
        '{"id": "b", "title": "", "text": "one two three"}\n{"id": "c", "title": "x"}\n{"id": "e", "title": ""}\n'
    )
    encoder = served.model.encoder
    files = (tmp_path / "links", tmp_path / "docs", encoder)
    accounts: list[InputAccount] = []
    topics = topics_of_links(*files, "title", 0, check=IdCheck(accounts.append))
    assert accounts == [InputAccount("links", 4, (LeftOut("unknown query id", 1, ("z",)),))]
    assert topics == [
        Topic("running shoes", {"b": 1.0, "c": 1.0}, frozenset("a")),
        Topic("one two three", {"c": 1.0}, frozenset("b")),
    ]
    drawn = topics_of_links(*files, "keywords:2", 0)
    assert [len(topic.query.split()) for topic in drawn] == [2, 2]
    assert set(drawn[0].query.split()) <= {"running", "shoes", "they", "run", "fast"}
    assert drawn == topics_of_links(*files, "keywords:2", 0)
    assert len({topics_of_links(*files, "keywords:2", seed)[0].query for seed in range(8)}) > 1
    (tmp_path / "links").write_text("z\ty\n")
    with pytest.raises(InputError, match="ids match"):
        topics_of_links(*files, "title", 0)
    for bad in ("keywords:0", "keywords:101", "document", "keywords:x", ""):
        with pytest.raises(ConfigError, match=r"queries is .* title or keywords:K with K from 1 to 100"):
            topics_of_links(*files, bad, 0)


def test_a_sample_keeps_order_and_seed() -> None:
    topics = [Topic(str(number), {}) for number in range(100)]
    drawn = sample(topics, 20, seed=3)
    assert len(drawn) == 20
    assert drawn == sorted(drawn, key=lambda topic: int(topic.query))
    assert drawn == sample(topics, 20, seed=3) != sample(topics, 20, seed=4)
    assert sample(topics, 100, seed=3) == topics


def numbered(n: int, known: int = 0) -> tuple[list[Topic], TrainingQueries]:
    """Return topics, and training queries with the texts of the first ``known`` ones in other spelling."""
    topics = [Topic(f"word{number} word{number + 1}", {"d1": 1.0}) for number in range(n)]
    queries = TrainingQueries.of("0" * 32, [f" {topic.query.upper()}\t" for topic in topics[:known]], [])
    assert queries is not None
    return topics, queries


@pytest.mark.parametrize(
    ("n", "known", "n_used", "held_out"),
    [
        (100, 0, 100, True),
        (100, 70, 30, True),
        (100, 71, 100, False),
        (100, 100, 100, False),
        (12, 0, 12, True),
        (12, 1, 12, False),
        (0, 0, 0, True),
    ],
)
def test_training_queries_are_left_out_if_enough_others_remain(n: int, known: int, n_used: int, held_out: bool) -> None:
    topics, queries = numbered(n, known)
    chosen = topics_to_fit(topics, queries)
    assert chosen.topics == topics[-n_used:] if n_used else not chosen.topics
    assert (chosen.n_given, chosen.n_learned, chosen.held_out) == (n, known, held_out)
    assert ("held-out" not in chosen.sentence()) and (str(n - known) in chosen.sentence())
    assert ("on training queries" in chosen.sentence()) == (not held_out)


def test_source_documents_of_training_links_are_left_out_by_their_ids() -> None:
    topics = [Topic("one title", {"x": 1.0}, frozenset([f"d{number}"])) for number in range(50)]
    queries = TrainingQueries.of("0" * 32, ["d7"], ["d3", "d4", "x"])
    chosen = topics_to_fit(topics, queries)
    assert chosen.topics == [*topics[:3], *topics[5:]]
    assert chosen.held_out and chosen.n_learned == 2


def test_a_model_without_a_list_of_its_training_queries_is_unknown() -> None:
    topics, _ = numbered(40)
    chosen = topics_to_fit(topics, None)
    assert chosen.topics == topics
    assert chosen.held_out is None and chosen.n_learned is None
    assert "it is unknown whether" in chosen.sentence()
