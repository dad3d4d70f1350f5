"""Links and judgements beside the clicks: half of the judged queries are the gate's, always the same ones."""

from __future__ import annotations

from pathlib import Path

from reranker.formats import RejectLog
from reranker.retrain.learner import is_for_the_gate, read_links_and_judgements


def files(path: Path, n: int = 200) -> tuple[Path, Path]:
    (path / "queries.tsv").write_text("".join(f"q{i}\twords  number {i}\n" for i in range(n)))
    (path / "qrels.tsv").write_text(
        "".join(f"q{i}\td{i}\t1\nq{i}\td{i + 1}\t0\n" for i in range(n)) + "unknown\td1\t1\n"
    )
    return path / "qrels.tsv", path / "queries.tsv"


def test_judged_queries_are_parted_once_and_for_all(tmp_path: Path) -> None:
    judgements, queries = files(tmp_path)
    other_evidence = read_links_and_judgements(None, judgements, queries)
    (evidence,) = other_evidence.evidence
    assert evidence.texts is not None
    learned = {evidence.texts[query] for query in evidence.query_ids}
    assert len(learned) + len(other_evidence.judged) == 200
    assert not learned & set(other_evidence.judged)
    assert 60 < len(learned) < 140
    assert "words number 7" in learned | set(other_evidence.judged)
    more = read_links_and_judgements(None, *files(tmp_path, 300))
    assert set(other_evidence.judged) <= set(more.judged)


def test_judged_queries_of_one_text_are_one(tmp_path: Path) -> None:
    text = next(text for text in map(str, range(50)) if is_for_the_gate(text))
    (tmp_path / "queries.tsv").write_text(f"q1\t{text}\nq2\t {text}\nq3\t{text} \n")
    (tmp_path / "qrels.tsv").write_text("q1\ta\t2\nq1\tb\t0\nq2\tb\t1\nq2\tc\t1\nq3\td\t0\n")
    other_evidence = read_links_and_judgements(None, tmp_path / "qrels.tsv", tmp_path / "queries.tsv")
    assert other_evidence.judged == {text: {"a": 2, "b": 0, "c": 1, "d": 0}}


def test_judged_queries_that_differ_in_case_are_one_under_the_first_text(tmp_path: Path) -> None:
    text = next(text for text in (f"Text {i}" for i in range(50)) if is_for_the_gate(text))
    (tmp_path / "queries.tsv").write_text(f"q1\t{text}\nq2\t{text.upper()}\nq3\t{text.lower()}\n")
    (tmp_path / "qrels.tsv").write_text("q1\ta\t2\nq2\ta\t0\nq2\tb\t1\nq3\tc\t1\n")
    other_evidence = read_links_and_judgements(None, tmp_path / "qrels.tsv", tmp_path / "queries.tsv")
    assert other_evidence.judged == {text: {"a": 2, "b": 1, "c": 1}}


def test_spelling_of_letters_does_not_move_a_query_to_the_other_side() -> None:
    assert all(is_for_the_gate(f"Text {i}") == is_for_the_gate(f" tEXT  {i}") for i in range(50))


def test_links_count_beside_judgements(tmp_path: Path) -> None:
    (tmp_path / "links.tsv").write_text("a\tb\na\tc\nb\tb\n")
    other_evidence = read_links_and_judgements(tmp_path / "links.tsv", *files(tmp_path, 20))
    assert len(other_evidence.evidence) == 2
    assert other_evidence.preferences == 2 + len(other_evidence.evidence[1].preferences)
    assert read_links_and_judgements().evidence == ()


def test_bad_lines_go_to_the_sink(tmp_path: Path) -> None:
    (tmp_path / "links.tsv").write_text("a\tb\nonly\n")
    with RejectLog() as rejects:
        assert read_links_and_judgements(tmp_path / "links.tsv", rejects=rejects).preferences == 1
    assert rejects.count == 1
