"""``ssi train`` on what nobody wants to train on: it learns something sane, or says why not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.models.model_folder import load_model
from tests.unit.training.synthetic import Sources, synonyms, write_documents, write_links

Rows = Sequence[tuple[str, ...]]
DOCUMENTS, LINKS = synonyms()


def train(folder: Path, documents: Sources, links: Rows = (), judgements: Rows = (), *options: str) -> Result:
    docs = write_documents(folder / "docs.jsonl", documents)
    evidence: tuple[str, ...]
    if judgements:
        queries = sorted({(row[0], f"{row[0]}x0 {row[0]}x1") for row in judgements})
        evidence = (
            "--qrels",
            str(write_links(folder / "qrels.tsv", judgements)),
            "--query-file",
            str(write_links(folder / "queries.tsv", queries)),
        )
    else:
        evidence = ("--links", str(write_links(folder / "links.tsv", links)))
    start = ["train", "--docs", str(docs), "--model", str(folder / "model"), "--dim", "8", "--json"]
    return CliRunner().invoke(main, [*start, *evidence, *options])


def trained(folder: Path, *args: Any) -> dict[str, Any]:
    """Return the report of a run that must write a model at least as good as words alone, that answers queries."""
    result = train(folder, *args)
    assert result.exit_code == 0, result.output
    report = dict(json.loads(result.stdout))
    assert report["valid_map"] >= report["lexical_map"] - 0.01
    model = load_model(folder / "model")
    document = model.encoder.encode([{"title": "fr3x0", "text": "fr3x2 filler1"}])
    assert document.vectors.shape == (1, 8 if len(model.U) else 1)
    query = model.encode_queries(["en3x1 filler1"])
    assert abs(float(model.scorer.score_matrix(query.rows, document.rows, document.vectors)[0, 0])) < 1e3
    return report


def refused(folder: Path, message: str, *args: Any) -> None:
    result = train(folder, *args)
    told = " ".join(result.output.split())
    assert (result.exit_code, message in told) == (6, True), result.output
    assert "Traceback" not in told
    assert not (folder / "model").exists()


def test_a_misspelt_field_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    shop = [{"id": d["id"], "title": d["title"], "details": [{"description": d["text"]}]} for d in DOCUMENTS]
    message = "has the field 'details.descripton': the nearest of their fields are details.description"
    refused(tmp_path, message, shop, LINKS, (), "--fields", "title,details.descripton")
    refused(tmp_path, "nearest of their fields are details, details.description", shop, LINKS, (), "--fields", "xyz")


def test_a_misspelt_field_is_noticed_at_the_first_documents(tmp_path: Path) -> None:
    many = [*DOCUMENTS, *({"id": f"more{n}", "title": "filler1", "text": "filler2"} for n in range(600))]
    hint = "none of the first 512 documents has the field 'titel': did you mean title?"
    refused(tmp_path, hint, many, LINKS, (), "--fields", "titel,text")
    last = [*many, {"id": "last", "title": "filler1", "text": "filler2", "titel": "filler3"}]
    result = train(tmp_path, last, LINKS, (), "--fields", "titel,text")
    assert result.exit_code == 0 and hint in " ".join(result.stderr.split())


def test_a_field_that_few_documents_have_is_said(tmp_path: Path) -> None:
    some = [{**DOCUMENTS[0], "brand": "acme"}, *DOCUMENTS[1:]]
    result = train(tmp_path, some, LINKS, (), "--fields", "title,text,brand")
    assert result.exit_code == 0
    assert f"the field 'brand' has words in 1 of {len(DOCUMENTS)} documents" in result.stderr
    result = train(tmp_path, [{"id": d["id"], "text": d["text"]} for d in DOCUMENTS], LINKS)
    assert result.exit_code == 0, "the default names fields that a file need not have"
    assert f"the field 'title' has words in 0 of {len(DOCUMENTS)} documents" in result.stderr


def test_documents_by_another_key_say_why_none_can_be_used(tmp_path: Path) -> None:
    docs = tmp_path / "docs.jsonl"
    docs.write_text(
        "".join(json.dumps({"sku": d["id"], "title": d["title"], "text": d["text"]}) + "\n" for d in DOCUMENTS)
    )
    links = write_links(tmp_path / "links.tsv", LINKS)
    command = ["train", "--docs", str(docs), "--links", str(links), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 6
    assert "holds no usable document: " in result.stderr and f"{len(DOCUMENTS):,} id_missing" in result.stderr
    assert "needs the key 'id' or '_id', and this one's keys are 'sku', 'title', 'text'" in result.stderr
    assert "name another with --id-field" in result.stderr


def test_an_id_field_gives_the_model_and_the_index_that_ids_give(tmp_path: Path) -> None:
    links = write_links(tmp_path / "links.tsv", LINKS)
    models = []
    for name, key in (("id", "id"), ("sku", "sku")):
        docs = tmp_path / f"{name}.jsonl"
        docs.write_text(
            "".join(json.dumps({key: d["id"], "title": d["title"], "text": d["text"]}) + "\n" for d in DOCUMENTS)
        )
        more = ["--id-field", "sku"] if name == "sku" else []
        model = str(tmp_path / f"model-{name}")
        report = tmp_path / f"{name}.html"
        for command in (
            ["train", "--docs", str(docs), "--links", str(links), "--model", model, "--report", str(report), *more],
            ["index", str(docs), "--engine", f"tantivy:{tmp_path / name}", "--index", "docs", "--model", model, *more],
            ["evaluate", "--docs", str(docs), "--links-test", str(links), "--model", model, *more],
        ):
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 0, result.output
        models.append(load_model(Path(model)).model_id)
        assert DOCUMENTS[0]["title"].split()[0] in report.read_text(encoding="utf-8")
        hits = CliRunner().invoke(
            main,
            [
                "search",
                DOCUMENTS[0]["title"],
                "--engine",
                f"tantivy:{tmp_path / name}",
                "--index",
                "docs",
                "--model",
                model,
                "--json",
            ],
        )
        assert DOCUMENTS[0]["id"] in {hit["id"] for hit in json.loads(hits.stdout)["hits"]}
    assert models[0] == models[1]


def test_an_id_field_without_a_file_is_refused(tmp_path: Path) -> None:
    links = write_links(tmp_path / "links.tsv", LINKS)
    of_index = ["--engine", f"tantivy:{tmp_path}", "--index", "docs", "--id-field", "sku"]
    command = ["train", *of_index, "--links", str(links), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and "documents of an index are identified by _id" in result.stderr


def test_an_id_field_of_the_configuration_is_for_files(tmp_path: Path) -> None:
    links = write_links(tmp_path / "links.tsv", LINKS)
    docs, config = tmp_path / "docs.jsonl", tmp_path / "ssi.toml"
    docs.write_text(
        "".join(json.dumps({"sku": d["id"], "title": d["title"], "text": d["text"]}) + "\n" for d in DOCUMENTS)
    )
    config.write_text('[default]\nid_field = "sku"\nengine = "tantivy:index"\nindex = "docs"\n')
    told = ["--links", str(links), "--model"]
    for command in (
        ["index", str(docs)],
        ["train", "--docs", str(docs), *told, str(tmp_path / "of-file")],
        ["train", *told, str(tmp_path / "of-index")],  # whose documents the _id names
    ):
        result = CliRunner().invoke(main, ["--config", str(config), *command])
        assert result.exit_code == 0, (command, result.output)


def test_one_field(tmp_path: Path) -> None:
    report = trained(tmp_path, DOCUMENTS, LINKS, (), "--fields", "text")
    assert report["valid_map"] > report["lexical_map"] + 0.1


@pytest.mark.parametrize("title", ["", "the same title"], ids=["empty", "equal"])
def test_titles_that_say_nothing(tmp_path: Path, title: str) -> None:
    report = trained(tmp_path, [document | {"title": title} for document in DOCUMENTS], LINKS)
    assert report["valid_map"] > report["lexical_map"] + 0.1


def test_fifty_links(tmp_path: Path) -> None:
    report = trained(tmp_path, DOCUMENTS, LINKS[:50])
    assert report["split"] == "links"


def test_links_of_one_source(tmp_path: Path) -> None:
    source = LINKS[0][0]
    trained(tmp_path, DOCUMENTS, [(source, document["id"]) for document in DOCUMENTS if document["id"] != source][:40])


def test_one_link(tmp_path: Path) -> None:
    refused(tmp_path, "give at least 2", DOCUMENTS, LINKS[:1])


def test_one_query(tmp_path: Path) -> None:
    judgements = [("en3", document["id"], str(number % 2)) for number, document in enumerate(DOCUMENTS[:30])]
    refused(tmp_path, "1 distinct query is too few", DOCUMENTS, (), judgements)


def test_two_queries(tmp_path: Path) -> None:
    judgements = [(f"en{topic}", d["id"], str(int(d["topic"] == topic))) for topic in (3, 4) for d in DOCUMENTS[:60]]
    trained(tmp_path, DOCUMENTS, (), judgements)


def test_ten_queries(tmp_path: Path) -> None:
    judgements = [(f"en{topic}", d["id"], str(int(d["topic"] == topic))) for topic in range(10) for d in DOCUMENTS[:80]]
    report = trained(tmp_path, DOCUMENTS, (), judgements)
    assert report["split"] == "queries"


def test_identical_documents(tmp_path: Path) -> None:
    """A word that stands in every document tells none apart, and no query has another."""
    same = [document | {"title": "same title", "text": "same words everywhere"} for document in DOCUMENTS]
    refused(tmp_path, "query without a known word", same, LINKS)


def test_links_that_are_all_reciprocal(tmp_path: Path) -> None:
    both = sorted({pair for a, b in LINKS for pair in ((a, b), (b, a))})
    report = trained(tmp_path, DOCUMENTS, both)
    assert report["valid_map"] > report["lexical_map"] + 0.1


def test_judgements_of_one_grade(tmp_path: Path) -> None:
    """All are relevant: no document is stated to be worse, and any other one is."""
    judgements = [
        (f"en{topic}", d["id"], "1")
        for topic in range(12)
        for d in DOCUMENTS
        if d["topic"] == topic and d["id"].startswith("fr")
    ]
    report = trained(tmp_path, DOCUMENTS, (), judgements)
    assert report["split"] == "queries"


def test_judgements_of_grade_0_alone(tmp_path: Path) -> None:
    refused(
        tmp_path,
        "there is nothing to learn from",
        DOCUMENTS,
        (),
        [(f"en{t}", DOCUMENTS[t]["id"], "0") for t in range(12)],
    )
