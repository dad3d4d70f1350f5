# ruff: noqa: N802 - tests carry the ids of the papers' checklist
"""T8 and T14: pairs of each strategy, agreement with judges, studies of clicks, and what is learned from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from papers import registry
from papers.click_tasks import (
    RANDOM_SYSTEMS,
    SKIPPED_SYSTEMS,
    STRATEGY_OF,
    TASKS,
    Clicked,
    agreement,
    asked,
    matching_studies,
    preference_studies,
    read_clicked,
    stated_pairs,
)
from papers.corpora import make_collection
from papers.registry import Section, TaskRequest
from papers.results import AT_START
from reranker.clicks.schema import Impression, ShownDocument
from tests.papers.made_collections import write_collection

BY_ID = {task.id: task for task in TASKS}


def shown(query: str, clicked: str, session: str = "s", documents: str = "abcd") -> Impression:
    hits = tuple(ShownDocument(one, rank, one in clicked) for rank, one in enumerate(documents, 1))
    return Impression(f"{session}-{query}", query, hits, session=session)


LISTS = (shown("sun", "c"), shown("sun", "ac", "t"), shown("rain", "", "u"))
EXPECTED = {
    "T14a": {("c", "a"), ("c", "b"), ("c", "d"), ("a", "b"), ("a", "d")},
    "T14b": {("c", "a"), ("c", "b")},
    "T14c": {("c", "b")},
    "T14d": {("c", "d"), ("a", "b")},
    "T14e": {("c", "a"), ("a", "b"), ("a", "d")},
}


@pytest.mark.parametrize("task", sorted(EXPECTED))
def test_T14a_and_T14b_and_T14c_and_T14d_and_T14e_pairs_of_each_strategy(task: str) -> None:
    stated = stated_pairs(LISTS, STRATEGY_OF[task])
    assert {(better, worse) for _, better, worse in stated} == EXPECTED[task]
    assert {query for query, _, _ in stated} == {"sun"}, "a list without a click states nothing"


def test_pairs_count_once_a_list() -> None:
    assert stated_pairs(LISTS, "clicked-over-previous")["sun", "c", "b"] == 2
    assert stated_pairs(LISTS[:1], "clicked-over-previous")["sun", "c", "b"] == 1


def test_T14_agreement_is_counted_where_the_judges_differ() -> None:
    grades = {"sun": {"a": 1.0, "b": 0.0, "c": 2.0, "d": 2.0}}
    found = agreement(LISTS, grades, "clicked-over-unclicked", np.random.default_rng(0))
    # s: c over a, b agree, over d a tie; t: a and c over b agree, a over d contradicts, c over d a tie.
    assert (found.agree, found.contradict, found.tie, found.unjudged) == (4, 1, 2, 0)
    assert found.share == pytest.approx(0.8)
    assert 0 < found.standard_error < 0.5
    none = agreement(LISTS, {}, "clicked-over-unclicked", np.random.default_rng(0))
    assert np.isnan(none.share) and none.unjudged == 7


def clicked(folder: Path) -> Clicked:
    return read_clicked(write_collection(folder / "made"), seed=3)


def test_simulated_readers_click_what_is_relevant_and_look_at_the_top(tmp_path: Path) -> None:
    data = clicked(tmp_path)
    assert data.simulated and len(data.shown) == 10 * len(data.collection.query_ids)
    grades = data.grades()
    first = [(one.shown[0].clicked, grades[one.query].get(one.shown[0].document, 0) >= 1) for one in data.shown]
    rates = {kind: np.mean([click for click, relevant in first if relevant == kind]) for kind in (True, False)}
    assert rates[True] == 1.0 and rates[False] < 0.3
    last = [one.shown[-1].clicked for one in data.shown if grades[one.query].get(one.shown[-1].document, 0) >= 1]
    assert np.mean(last) < 0.3  # rank 10 is looked at once in ten


def test_preferences_are_rows_of_the_study_and_of_training_topics_alone(tmp_path: Path) -> None:
    data = clicked(tmp_path)
    for study in preference_studies(data, "clicked-over-unclicked", 3, 0):
        pairs = study.preferences
        assert pairs is not None and len(pairs)
        assert study.judged is None and not study.relevant.nnz
        assert pairs.query.max() < len(study.queries)
        stated = stated_pairs(data.shown, "clicked-over-unclicked")
        row_of = data.query_rows()
        test = {
            row_of[text]
            for text, query in zip(data.texts, data.collection.query_ids, strict=True)
            if query in study.test.task.query_ids
        }
        expected = sum(times for (query, *_), times in stated.items() if row_of[query] not in test)
        valid = len(study.valid.task.query_ids)
        assert 0 < pairs.weight.sum() <= expected and valid


def test_T8_a_document_clicked_at_rank_1_belongs_to_its_query() -> None:
    documents = {one: (one, f"text {one}") for one in "abcd"}
    queries = {"q1": "sun", "q2": "rain", "q3": "snow"}
    judged = {query: {"a": 1.0, "b": 0.0} for query in queries}
    made = make_collection("made", documents, queries, judged)
    lists = (shown("sun", "ac"), shown("rain", "c"), shown("snow", "a"), shown("rain", "a", "t"))
    data = Clicked(made, ("sun", "rain", "snow"), lists, False)
    (study, *_) = matching_studies(data, "random", 3, 0)
    links = [trial.task.grades.toarray().tolist() for trial in (study.valid, study.test)]
    assert links == [[[1, 0, 0, 0]], [[1, 0, 0, 0]]], "c was clicked too, but not at rank 1"
    assert (study.test.tuples.negative != 0).all()
    (skipped, *_) = matching_studies(data, "skipped", 3, 0)
    assert skipped.preferences is not None
    by_query = {"sun": 2, "rain": 4, "snow": 3}  # rain: c over a; and a over b, c, d
    sizes = [len(skipped.preferences), len(skipped.valid.tuples.query), len(skipped.test.tuples.query)]
    assert sorted(sizes) == sorted(by_query.values())


def run(task: str, folder: Path, out: Path, systems: tuple[str, ...] = ()) -> Section:
    return BY_ID[task].run(TaskRequest(folder, out, systems, small=True), lambda *_: None)


def test_T8_prints_both_settings(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    section = run("T8", folder, tmp_path / "out", ("tf-idf", "utv-plus-i", "graded-tfidf", "graded-ssi"))
    random, skipped = section.tables
    assert [row[0] for row in random.rows] == ["TF-IDF", "UᵀV + I (PSI k = 2)"]
    assert [row[0].removesuffix(f" ({AT_START})") for row in skipped.rows] == ["TF-IDF", "SSI, UᵀV + I"]
    assert all(row[1].endswith("%") for table in section.tables for row in table.rows)


def test_T8_graded_systems_learn_from_pairs_and_all_others_from_links(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    section = run("T8", folder, tmp_path / "out", ("vector-space", "graded-likelihood"))
    random, skipped = section.tables
    assert [row[0] for row in random.rows] == ["vector space, inverted file"]
    assert [row[0] for row in skipped.rows] == ["language model, Jelinek-Mercer"]
    every = TaskRequest(folder, tmp_path, ("all",))
    links, pairs = asked(every, "random"), asked(every, "skipped")
    assert {*RANDOM_SYSTEMS, "psi-3"} < set(links) and {*SKIPPED_SYSTEMS, "graded-s2net"} < set(pairs)
    assert not set(links) & set(pairs) and {*links, *pairs} == set(registry.systems())


def test_T14_prints_agreement_and_what_is_learned(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    section = run("T14", folder, tmp_path / "out", ("graded-tfidf", "graded-ssi"))
    pairs, learned = section.tables
    assert [row[1] for row in pairs.rows] == ["T14a", "T14b", "T14c", "T14d", "T14e"]
    assert len(learned.rows) == 5 and all(row[2] for row in learned.rows)
    one = run("T14b", folder, tmp_path / "out", ("graded-tfidf", "graded-ssi"))
    assert one.tables[1].rows == (learned.rows[1],), "the same study, used again"


def test_peoples_clicks_are_read_from_the_folder(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "made")
    import gzip

    with gzip.open(folder / "queries.tsv.gz", "rt", encoding="utf-8") as lines:
        text = next(lines).split("\t")[1].strip()
    record = {
        "query_id": "x",
        "query": text,
        "session": "s",
        "user": None,
        "time": "1.5",
        "results": ["d000", "d001", "d002"],
        "clicks": [{"doc": "d001", "rank": 2, "time": "2.5"}],
    }
    with gzip.open(folder / "clicks.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    data = read_clicked(folder)
    assert not data.simulated
    assert stated_pairs(data.shown, "clicked-over-previous") == {(text, "d001", "d000"): 1}


def test_documentation_asks_for_what_it_links_to(ssi_data: Path) -> None:
    data = read_clicked(ssi_data / "cppdocs", small=True)
    assert data.simulated and not data.collection.whole
    assert all(len(one.shown) == 10 for one in data.shown)


def test_small_runs_on_real_clicks(ssi_data: Path, tmp_path: Path) -> None:
    section = run("T14b", ssi_data / "trec_session_2013", tmp_path, ("graded-tfidf", "graded-ssi"))
    agree = section.tables[0].rows[0]
    assert agree[0] == "last-clicked-above-skipped"
    assert int(agree[3]) > int(agree[4])
