"""Links, queries, judgements, ids and pairs: known answers, bad lines, and the real files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reranker.errors import InputError
from reranker.formats import Judgement, Link, Query, RejectLog, read_documents, read_ids
from reranker.records import Pair
from reranker.tables import read_links, read_pairs, read_qrels, read_queries
from tests.unit.formats.collect import CollectingSink


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.tsv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_links(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffa\tb\r\n\nb\tä c\na\ta\na\tb\n")
    assert list(read_links(path)) == [Link("a", "b"), Link("b", "ä c"), Link("a", "a"), Link("a", "b")]


def test_bad_links(tmp_path: Path) -> None:
    sink = CollectingSink()
    lines = b"a\tb\nalone\na\tb\tc\n\tb\na\t\n\xff\tb\n" + b"x" * 513 + b"\tb\nc\td"
    assert list(read_links(written(tmp_path, lines), rejects=sink)) == [Link("a", "b"), Link("c", "d")]
    assert sink.kinds == ["columns", "columns", "id_empty", "id_empty", "not_utf8", "id_too_long"]
    assert [entry.line for entry in sink.entries] == [2, 3, 4, 5, 6, 7]


def test_queries(tmp_path: Path) -> None:
    sink = CollectingSink()
    path = written(tmp_path, "q1\tfirst query\nq2\twith\ttab \nq1\tagain\nq3\t \nq4\n")
    assert list(read_queries(path, rejects=sink)) == [Query("q1", "first query")]
    assert sink.kinds == ["columns", "duplicate_id", "empty_query", "columns"]


def test_qrels_of_three_and_of_four_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "q1\td1\t3\nq1\td 2\t2.25\nq2\t0\td1\t-1\nq3 Q0  d1 1e0\n")
    assert list(read_qrels(path)) == [
        Judgement("q1", "d1", 3.0),
        Judgement("q1", "d 2", 2.25),
        Judgement("q2", "d1", -1.0),
        Judgement("q3", "d1", 1.0),
    ]


@pytest.mark.parametrize("grade", ["", "nan", "inf", "1e999", "1_0", "one", "٣", "0x1", "1,5", "--1", "9" * 5000])
def test_grades_that_are_no_finite_decimal_numbers(tmp_path: Path, grade: str) -> None:
    sink = CollectingSink()
    assert list(read_qrels(written(tmp_path, f"q\td\t{grade}\n"), rejects=sink)) == []
    assert sink.kinds == ["number"]


def test_ids(tmp_path: Path) -> None:
    assert list(read_ids(written(tmp_path, "a\nb c\n\n12\n"))) == ["a", "b c", "12"]


@pytest.mark.parametrize(
    "text",
    [
        "q\ta\tb\t0.5\nr s\tc\td\t1",
        "query\tbetter\tworse\tweight\nq\ta\tb\t0.5\nr s\tc\td\t1",
        "weight\tworse\tquery\tbetter\n0.5\tb\tq\ta\n1\td\tr s\tc",
    ],
)
def test_pairs_with_and_without_header(tmp_path: Path, text: str) -> None:
    assert list(read_pairs(written(tmp_path, text))) == [Pair("q", "a", "b", 0.5), Pair("r s", "c", "d", 1.0)]


def test_pairs_without_weights(tmp_path: Path) -> None:
    assert list(read_pairs(written(tmp_path, "q\ta\tb\n"))) == [Pair("q", "a", "b")]
    assert list(read_pairs(written(tmp_path, "better\tworse\tquery\na\tb\tq\n"))) == [Pair("q", "a", "b")]


def test_bad_pairs(tmp_path: Path) -> None:
    sink = CollectingSink()
    lines = [
        "q\ta\tb\t0",
        "q\ta\tb\t-1",
        "q\ta\tb\tnan",
        "q\ta\ta",
        " \ta\tb",
        "q\ta",
        "q\t\tb",
        "q\ta\tb\t1\t1",
        "q\ta\tb",
    ]
    assert list(read_pairs(written(tmp_path, "\n".join(lines)), rejects=sink)) == [Pair("q", "a", "b")]
    kinds = ["weight", "weight", "number", "same_document", "empty_query", "columns", "id_empty", "columns"]
    assert sink.kinds == kinds


def test_more_columns_than_the_header_names(tmp_path: Path) -> None:
    sink = CollectingSink()
    assert list(read_pairs(written(tmp_path, "query\tbetter\tworse\nq\ta\tb\t1\n"), rejects=sink)) == []
    assert sink.kinds == ["columns"]


def test_without_a_sink_the_first_bad_line_raises_with_its_place(tmp_path: Path) -> None:
    for read in (read_links, read_queries, read_qrels, read_pairs):
        with pytest.raises(InputError, match=r"table\.tsv, line 1 \(byte 0\): 1 columns"):
            list(read(written(tmp_path, "alone\n")))
        with pytest.raises(InputError, match="does not exist"):
            list(read(tmp_path / "missing"))


@given(st.binary(max_size=300))
@example(b"query\tbetter\tworse\tweight")
def test_any_lines_are_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("table") / "t"
    # A file of commas and no tabs is refused as a whole, and so is damaged JSON.
    data = data.replace(b",", b";").replace(b"{", b"(").replace(b"[", b"(")
    path.write_bytes(gzip.compress(data))
    for read in (read_links, read_queries, read_qrels, read_pairs, read_documents, read_ids):
        log = RejectLog()
        n_read = sum(1 for _ in read(path, rejects=log))
        text = data.removeprefix(b"\xef\xbb\xbf")
        lines = text.replace(b"\r", b"\n").split(b"\n") if b"\n" not in text else text.split(b"\n")
        n_lines = sum(1 for line in lines if line.strip())
        # The first line can be a header: hypothesis takes it from the source.
        assert 0 <= n_lines - n_read - log.kinds.total() <= (b"query" in data.lower())


def test_a_header_alone_holds_no_preference(tmp_path: Path) -> None:
    log = RejectLog()
    assert list(read_pairs(written(tmp_path, "query\tbetter\tworse\tweight"), rejects=log)) == []
    assert log.count == 0


def test_the_real_files_are_read_whole(ssi_data: Path) -> None:
    counts = {
        "cranfield": (1_400, 225, 1_837),
        "wikimedia_discernatron": (3_772, 135, 3_804),
    }
    for name, expected in counts.items():
        folder = ssi_data / name
        found = (
            sum(1 for _ in read_documents(folder / "docs.jsonl.gz")),
            sum(1 for _ in read_queries(folder / "queries.tsv.gz")),
            sum(1 for _ in read_qrels(folder / "qrels.tsv.gz")),
        )
        assert found == expected
    assert sum(1 for _ in read_links(ssi_data / "cppdocs" / "links_en.tsv.gz")) == 42_636


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (read_links, "a,b\nc,d\n"),
        (read_queries, "q1,first query\nq2,second\n"),
        (read_qrels, "q1,d1\nq1,d2\n"),
        (read_pairs, "red shoes,d1,d2\n"),
    ],
)
def test_commas_in_the_place_of_tabs_are_refused_by_name(tmp_path: Path, reader: Callable[..., Any], text: str) -> None:
    for path, data in (("links.csv", text.encode()), ("links.csv.gz", gzip.compress(text.encode()))):
        (tmp_path / path).write_bytes(data)
        sink = CollectingSink()
        with pytest.raises(
            InputError, match=rf"no tabs found in '.*{path}', but commas, and no header: .* Add a header"
        ):
            list(reader(tmp_path / path, rejects=sink))
        assert sink.entries == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("q1,d1,1\nq1,d2,0\n", [("q1", "d1", 1.0), ("q1", "d2", 0.0)]),
        ("query,document,grade\nq1,d1,1\n", [("q1", "d1", 1.0)]),
        ('"red, warm",d1,-2\nq 1, d2 ,.5\n', [("red, warm", "d1", -2.0), ("q 1", "d2", 0.5)]),
        ("q1,0,d1,3\n", [("q1", "d1", 3.0)]),
    ],
)
def test_judgments_can_be_separated_by_commas(tmp_path: Path, text: str, found: list[tuple[str, str, float]]) -> None:
    assert list(read_qrels(written(tmp_path, text))) == [Judgement(*one) for one in found]


def test_a_bad_line_among_commas_is_rejected(tmp_path: Path) -> None:
    sink = CollectingSink()
    lines = "q1,d1,1\n" * 12 + "q1,d1\nquery,document,grade\n"
    assert len(list(read_qrels(written(tmp_path, lines), rejects=sink))) == 12
    assert sink.kinds == ["columns", "number"]


def test_a_line_of_commas_in_a_file_of_tabs_is_one_bad_line(tmp_path: Path) -> None:
    sink = CollectingSink()
    assert list(read_links(written(tmp_path, "# from, to\na,1\tb\n"), rejects=sink)) == [Link("a,1", "b")]
    assert sink.kinds == ["comment"]
    assert list(read_qrels(written(tmp_path, "q,1 0 d,1 1\n"))) == [Judgement("q,1", "d,1", 1.0)]
    assert list(read_ids(written(tmp_path, "a,b\nc,d\n"))) == ["a,b", "c,d"]
    assert list(read_links(written(tmp_path, ""))) == []
