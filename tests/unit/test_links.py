"""`ssi links`: fields that are computed from links, on graphs whose values are known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.rerank.signals import parse_signals, typed

TITLES = {"a": "red", "b": "green", "c": "blue", "d": "grey"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": id_, "title": title, "text": f"text of {id_}"} for id_, title in TITLES.items()]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def write_links(pairs: Sequence[str]) -> None:
    Path("links.tsv").write_text("".join(f"{pair[0]}\t{pair[1]}\n" for pair in pairs))


def links(name: str, *more: str, out: str = "out.jsonl") -> Result:
    return CliRunner().invoke(
        main, ["links", name, "--docs", "docs.jsonl", "--links", "links.tsv", "--out", out, *more]
    )


def rows_of(path: str) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if path.endswith(".gz") else data).splitlines()]


def test_pagerank_of_a_cycle_and_of_documents_without_links(folder: Path) -> None:
    # a <-> b in a cycle; c links to a; d is not linked and links nowhere, so it leads everywhere. The link to itself
    # and the second a -> b do not count.
    write_links(["ab", "ba", "ca", "ab", "cc"])
    result = links("pagerank", "--json")
    assert result.exit_code == 0, result.output
    ranks = {row["id"]: row["pagerank"] for row in rows_of("out.jsonl")}
    assert sum(ranks.values()) == pytest.approx(1)
    # c and d are reached only by jumps: x = .15 (1 - d) / 4 + d / 4 with d = c = x, so x = .0375 + .2125 x.
    x = 0.0375 / (1 - 0.2125)
    assert ranks["c"] == pytest.approx(x) and ranks["d"] == pytest.approx(x)
    # a = x + .85 b + .85 c and b = x + .85 a.
    a = (x + 0.85 * x + 0.85 * x) / (1 - 0.85**2)
    assert ranks["a"] == pytest.approx(a) and ranks["b"] == pytest.approx(x + 0.85 * a)
    assert [row["title"] for row in rows_of("out.jsonl")] == list(TITLES.values())
    about = json.loads(result.stdout)
    assert (about["documents"], about["links"], about["without_links"]) == (4, 3, 1)
    assert [one["id"] for one in about["highest"]] == ["a", "b", "c", "d"]


def test_the_field_of_pagerank_is_a_signal_of_an_index(folder: Path) -> None:
    write_links(["ab", "ba", "ca"])
    assert links("pagerank", "--field", "rank", out="ranked.jsonl.gz").exit_code == 0
    made = CliRunner().invoke(main, ["index", "ranked.jsonl.gz", "--engine", "tantivy:./index", "--index", "docs"])
    assert made.exit_code == 0, made.output
    engine = open_engine("tantivy:./index")
    (signal,) = typed(parse_signals("rank"), engine, "docs")
    assert signal.kind == "number"
    body = {"query": {"match_all": {}}, "docvalue_fields": [signal.request()], "size": 10}
    answer = engine.search("docs", body)
    found = {hit.id: float(number) for hit, number in zip(answer.hits, signal.numbers(answer.hits), strict=True)}
    assert found == pytest.approx({row["id"]: row["rank"] for row in rows_of("ranked.jsonl.gz")}, rel=1e-6)


@pytest.mark.parametrize(
    ("pairs", "more", "message"),
    [
        (["aa", "bb"], [], "has no link between two different documents"),
        (["ax", "yb", "ab"], [], "67% of the 3 links cannot be used"),
        (["ab"], ["--field", "title"], "document 'a' has the field 'title' already: name another with --field"),
        (["ab"], ["--damping", "1"], "--damping"),
    ],
)
def test_links_that_cannot_be_used_are_refused(folder: Path, pairs: list[str], more: list[str], message: str) -> None:
    write_links(pairs)
    result = links("pagerank", *more)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not Path("out.jsonl").exists()


def test_unknown_ids_are_counted_if_the_rest_is_wanted(folder: Path) -> None:
    write_links(["ax", "yb", "ab"])
    result = links("pagerank", "--allow-partial", "--json")
    assert result.exit_code == 8  # records were left out
    account = json.loads(result.stdout)["accounts"][0]
    assert (account["given"], account["used"]) == (3, 1)
    assert len(rows_of("out.jsonl")) == 4


def test_parquet_is_not_written(folder: Path) -> None:
    write_links(["ab"])
    result = links("pagerank", out="out.parquet")
    assert result.exit_code != 0 and "name a file of JSON lines" in result.output


def test_anchor_texts_are_the_titles_of_linking_documents_in_their_order(folder: Path) -> None:
    write_links(["ca", "ba", "ab", "ba", "dd"])
    result = links("anchors", "--json")
    assert result.exit_code == 0, result.output
    assert [row.get("anchors") for row in rows_of("out.jsonl")] == ["green\nblue", "red", None, None]
    assert json.loads(result.stdout)["without_field"] == 2
    assert links("anchors", "--fields", "title,text", "--field", "in", out="more.jsonl.gz").exit_code == 0
    assert rows_of("more.jsonl.gz")[1]["in"] == "red text of a"
