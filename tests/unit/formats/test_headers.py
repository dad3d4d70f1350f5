"""Headers, separators, comments, line ends and other formats of tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reranker.clicks.exports import ClickJudgement, write_judgements
from reranker.errors import InputError
from reranker.formats import Judgement, Link, Query, RejectLog, read_documents
from reranker.records import Pair
from reranker.tables import read_judgements, read_links, read_pairs, read_qrels, read_queries
from tests.unit.formats.collect import CollectingSink


def written(folder: Path, text: str | bytes, name: str = "table.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


JUDGED = [Judgement("q1", "d1", 3.0), Judgement("q2", "d2", 0.5)]


@pytest.mark.parametrize(
    "text",
    [
        ",query_id,doc_id,grade\n0,q1,d1,3\n1,q2,d2,.5\n",  # row numbers of pandas
        "\tquery-id\tcorpus-id\tscore\n0\tq1\td1\t3\n1\tq2\td2\t.5\n",
        "label,product_id,query_id\n3,d1,q1\n.5,d2,q2\n",
        "Query ID\tdocid\trelevance\nq1\td1\t3\nq2\td2\t.5\n",
        "topic,iteration,docno,rel\nq1,0,d1,3\nq2,0,d2,.5\n",
        'note,queryId,docId,rating,query\n"a\nb, ""c""",q1,d1,3,red shoe\nx,q2,d2,.5,boot\n',
        "# made by hand\nq1 0\td1 3\nq2\tQ0 d2   .5\n",
        "q1 0 d1 3\r# a comment\rq2 0 d2 .5\r",
        "# made by hand\n#\nq1\td1\t3\nq2\td2\t.5\n",
        json.dumps({"q1": {"d1": 3}, "q2": {"d2": 0.5}}),
        json.dumps({"q1": {"d1": 3}, "q2": {"d2": 0.5}}, indent=2),
    ],
)
def test_judgments_of_many_files_are_the_same(tmp_path: Path, text: str) -> None:
    for name, data in (("table", text.encode()), ("table.gz", gzip.compress(text.encode()))):
        log = RejectLog()
        assert list(read_qrels(written(tmp_path, data, name), rejects=log)) == JUDGED
        assert log.count == 0
        assert log.n_accepted == 2


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (read_queries, "id,text\n7,red boot\n", [Query("7", "red boot")]),
        (read_queries, "query\tcount\tquery_id\nred boot\t5\t7\n", [Query("7", "red boot")]),
        (read_queries, 'qid,query\n7,"red,\n""boot"""\n', [Query("7", 'red,\n"boot"')]),
        (read_queries, "# id: text\n7\tred boot\n", [Query("7", "red boot")]),
        (read_queries, "#7\t#red boot\n", [Query("#7", "#red boot")]),
        (read_links, "target,source\nb,a\n", [Link("a", "b")]),
        (read_links, "From\tTo\tkind\na\tb\tsee also\n", [Link("a", "b")]),
        (read_links, "from_id,to_id\ra,b\r", [Link("a", "b")]),
        (read_pairs, "worse,better,query\nb,a,red boot\n", [Pair("red boot", "a", "b")]),
        (read_pairs, "\tquery\tbetter\tworse\tweight\n0\tred boot\ta\tb\t2\n", [Pair("red boot", "a", "b", 2.0)]),
    ],
)
def test_names_of_columns_are_used(tmp_path: Path, read: Callable[..., Any], text: str, found: list[object]) -> None:
    log = RejectLog()
    assert list(read(written(tmp_path, text), rejects=log)) == found
    assert log.count == 0


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_qrels, ",query_id,sku_code,grade\n0,q1,d1,3\n", r"names columns \('', 'query_id', 'sku_code', 'grade'\)"),
        (read_qrels, "a\tb\tc\nq1\td1\t3\n", "none for query id and document id and grade"),
        (read_queries, "query_id\tcategory\n7\tboots\n", "none for text: rename them .possible names of text: text, "),
        (read_queries, "text,category\n7,boots\n", "no tabs found"),
        (read_links, "query_id\tdoc_id\nq\td\n", "none for source and target"),
        (read_pairs, "query\tbetter\tother\nq\ta\tb\n", "none for worse"),
        (read_qrels, "query_id,doc_id,doc_id,grade\nq,d,e,1\n", "has two columns 'doc_id'"),
        (read_qrels, "q1 Q0 d1 1 12.5 bm25\nq1 Q0 d2 2 11.5 bm25\n", "is a run, .* give the judgments"),
        (read_qrels, "2 qid:1 1:0.5 2:1 # d1\n0 qid:1 1:0.1 2:0 # d2\n", "is a learning-to-rank list"),
        (read_qrels, "# qid:1: red\n#\n2 qid:1 # d1\n", "is a learning-to-rank list"),
        (read_qrels, '{"query_id": "q", "doc_id": "d"}\n{"query_id": "q", "doc_id": "e"}\n', "is JSON lines"),
        (read_queries, '{"_id": "q", "text": "red"}\n{"_id": "r", "text": "boot"}\n', "is JSON lines, not queries"),
        (read_qrels, '{"index": "products", "topics": [{"queries": []}]}', "rated ranking evaluator .*judgmentRatings"),
        (read_qrels, '{"q1": {"d1": 3}, ', "damaged, or JSON of another kind .*: give judgments as"),
        (read_qrels, '[{"q1": 3}]', "damaged, or JSON of another kind"),
        (read_queries, '{"q1": {"d1": 3}}', "JSON without the texts of queries: give them as tab-separated"),
    ],
)
def test_files_of_another_kind_are_refused_by_name(
    tmp_path: Path, read: Callable[..., Any], text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        list(read(path, rejects=RejectLog()))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("read", "text", "line", "reason"),
    [
        (read_queries, "q0\tred boot\tpan\t5\n", 1, "4 columns: there must be 2, separated by tabs .query id, text."),
        (read_queries, "id\ttext\nq0\tred boot\tpan\n", 2, "3 columns: the header has 2"),
        (read_qrels, "0,q1,d1,3\n", 1, "second of four columns is 'q1': in TREC's judgments it is 0 or Q0"),
        (read_qrels, "1\tq1\td1\t3\n", 1, "second of four columns"),
        (read_qrels, "q\td\t1e7\n", 1, "the grade is 1e7: it must be from -1,000,000 to 1,000,000"),
        (read_qrels, "q\td\t1\nq\te\t-1000001\n", 2, "it must be from"),
        (read_pairs, "q\ta\tb\t1e300\n", 1, "it must be a finite number above 0, from 1e-12 to 1e.12"),
        (read_pairs, "q\ta\tb\t1e-300\n", 1, "from 1e-12"),
    ],
)
def test_what_cannot_be_used_is_rejected_with_its_line(
    tmp_path: Path, read: Callable[..., Any], text: str, line: int, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"line {line} \(byte .*{reason}"):
        list(read(written(tmp_path, text)))


def test_large_grades_are_read(tmp_path: Path) -> None:
    assert read_judgements(written(tmp_path, "q\ta\t100\nq\tb\t10\nq\tc\t1\n")) == {
        "q": {"a": 100.0, "b": 10.0, "c": 1.0}
    }


def test_a_bad_first_line_of_a_file_without_header_is_one_bad_line(tmp_path: Path) -> None:
    sink = CollectingSink()
    assert list(read_qrels(written(tmp_path, "q1\td1\tgood\nq2\td2\t.5\n"), rejects=sink)) == JUDGED[1:]
    assert sink.kinds == ["number"]


def test_comments_are_counted_and_are_no_fault(tmp_path: Path) -> None:
    log = RejectLog()
    assert len(list(read_links(written(tmp_path, "# one\na\tb\n# two, three\nc\td\n"), rejects=log))) == 2
    account = log.account("links")
    assert (account.given, account.used, account.has_faults, log.count) == (4, 2, False, 0)
    assert "2 comment lines (line 1, line 3)" in account.sentence
    assert "no record was refused" in log.summary()
    assert list(read_links(written(tmp_path, "# one\na\tb\n"))) == [Link("a", "b")]


def test_an_unclosed_quote_costs_one_line_only(tmp_path: Path) -> None:
    sink = CollectingSink()
    lines = 'query_id,doc_id,grade\n"q1,d1,1\nq2,d2,1\n5" boot,d3,1\n'
    assert list(read_qrels(written(tmp_path, lines), rejects=sink)) == [
        Judgement("q2", "d2", 1.0),
        Judgement('5" boot', "d3", 1.0),
    ]
    assert [(entry.line, entry.kind) for entry in sink.entries] == [(2, "quotes")]


def test_of_two_judgments_of_a_pair_the_last_counts_and_the_other_is_counted(tmp_path: Path) -> None:
    log = RejectLog(tmp_path / "rejects")
    path = written(tmp_path, "q\ta\t1\nq\tb\t2\nq\ta\t3\nq\tb\t2\nq\ta\t1\n")
    assert read_judgements(path, log) == read_judgements(path) == {"q": {"a": 1.0, "b": 2.0}}
    account = log.account("judgments")
    assert (account.given, account.used, account.has_faults) == (5, 3, False)
    assert "2 judged again with another grade: the last grade counts (line 3, line 5)" in account.sentence
    assert (
        "document 'a' of query 'q' was judged 1 before: the last grade, 3, counts" in (tmp_path / "rejects").read_text()
    )


def test_documents_whose_lines_end_with_cr(tmp_path: Path) -> None:
    data = b"".join(b'{"id": %d}\r' % number for number in range(200))
    for path in (written(tmp_path, data, "docs.jsonl"), written(tmp_path, gzip.compress(data), "docs.jsonl.gz")):
        found = [document.id for document in read_documents(path)]
        assert found == [str(number) for number in range(200)]
    assert list(read_links(written(tmp_path, b"a\tb\r"))) == [Link("a", "b")]


def test_the_workbench_s_judgments_are_read_as_they_are_exported(tmp_path: Path) -> None:
    judged = [
        ClickJudgement("red shoe", "a", 1.0),
        ClickJudgement("red shoe", "b", 0.1),
        ClickJudgement("hat", "a", 0.5),
    ]
    path = tmp_path / "judgments.json"
    write_judgements(judged, path, "srw")
    expected = {"red shoe": {"a": 3.0, "b": 0.3}, "hat": {"a": 1.5}}
    assert read_judgements(path) == expected
    assert list(read_queries(path)) == [Query("red shoe", "red shoe"), Query("hat", "hat")]
    source = json.loads(path.read_text())
    answer = {"hits": {"hits": [{"_id": "1", "_source": source}, {"_id": "2", "_source": source}]}}
    path.write_text(json.dumps(answer))
    assert read_judgements(path) == expected
    assert list(read_queries(path)) == [Query("red shoe", "red shoe"), Query("hat", "hat")]


def test_bad_records_of_the_workbench_are_rejected(tmp_path: Path) -> None:
    ratings = [{"docId": "a", "rating": "good"}, {"docId": "b", "rating": 2}, {"rating": "1"}, "none"]
    lists = [{"query": "hat", "ratings": ratings}, {"query": " ", "ratings": []}, {"ratings": "none"}]
    path = written(tmp_path, json.dumps({"judgmentRatings": lists}))
    sink = CollectingSink()
    assert list(read_qrels(path, rejects=sink)) == [Judgement("hat", "b", 2.0)]
    assert sink.kinds == ["number", "id_type", "id_type", "id_type"]
    assert sink.entries[0].reason.startswith("record 1: the grade is 'good'")
    sink = CollectingSink()
    assert list(read_queries(path, rejects=sink)) == [Query("hat", "hat")]
    assert sink.kinds == ["empty_query", "id_type"]
