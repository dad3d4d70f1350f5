"""`ssi init`: what it reads of an index, what it writes, and that the commands it names work as they stand."""

from __future__ import annotations

import itertools
import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reranker.cli.init import JUDGEMENTS, analyzer_of, examined, field_in_sample, text_fields
from reranker.cli.main import main
from reranker.engines import Engine, WriteOp, open_engine
from reranker.engines.local import LocalEngine
from reranker.engines.protocol import IndexInfo
from reranker.errors import InputError
from tests.served import random_documents

MAPPING = {
    "properties": {
        "title": {"type": "text"},
        "text": {"type": "text"},
        "sku": {"type": "text"},
        "url": {"type": "text"},
        "note": {"type": "text"},
        "tag": {"type": "keyword"},
    }
}


def run(folder: Path, *arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SSI_STATE_DIR", str(folder / "state"))
        return CliRunner().invoke(main, arguments, catch_exceptions=False)


def fill(engine: Engine, index: str, mapping: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]) -> None:
    engine.create_index(index, mapping)
    results = engine.bulk(index, [WriteOp("index", name, source) for name, source in documents.items()])
    assert {result.status for result in results} == {201}
    engine.refresh(index)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    documents = {
        name: {
            **source,
            "sku": f"AB-{number}",
            "url": f"https://example.org/{name}",
            "note": "new" if not number else "",
        }
        for number, (name, source) in enumerate(random_documents(60).items())
    }
    engine = open_engine(f"tantivy:{tmp_path / 'index'}")
    fill(engine, "shop", MAPPING, documents)
    engine.close()
    return tmp_path


INIT = ("init", "--engine", "tantivy:index", "--index", "shop")


def test_what_it_reads_and_what_it_writes(folder: Path) -> None:
    report = json.loads(run(folder, *INIT, "--json").stdout)
    assert report["documents"] == 60 and report["analyzer"] == "auto" and report["judged_queries"] == 0
    why = {field["path"]: field["why_not"] for field in report["fields"]}
    assert why == {
        "title": "",
        "text": "",
        "sku": "contains codes",
        "url": "contains URLs or paths",
        "note": "rarely filled",
    }
    tables = tomllib.loads((folder / "ssi.toml").read_text())
    assert tables["train"]["fields"].split(",") == ["title", "text"]
    assert tables["default"] == {
        "engine": f"tantivy:{folder / 'index'}",
        "index": "shop",
        "model": "models/first",
        "body": "body.json",
    }
    body = json.loads((folder / "body.json").read_text())
    assert body["query"]["multi_match"]["fields"] == ["title", "text"]
    again = run(folder, *INIT)
    assert again.exit_code == 2 and "--force" in again.stderr
    assert run(folder, *INIT, "--force").exit_code == 0


def test_the_commands_that_it_names_work_as_they_stand(folder: Path) -> None:
    """Also from another folder, with the file named: its paths count from where it lies."""
    steps = json.loads(run(folder, *INIT, "--json").stdout)["next"]
    names = sorted(random_documents(60))
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 : k + 4]]
    (folder / "links.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    train, revectorize, promote, _, search, serve = steps
    trained = run(folder, *shlex.split(train, comments=True)[1:], "--dim", "4")
    assert trained.exit_code == 0, trained.output
    assert not list(folder.glob("models/first.documents*")), "what was read of the index is not left behind"
    assert run(folder, *shlex.split(revectorize)[1:]).exit_code == 0
    promoted = run(folder, *shlex.split(promote)[1:])
    assert promoted.exit_code == 0 and "live for shop" in promoted.output
    found = run(folder, *shlex.split(search)[1:-1], "word20", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["reranked"]
    (folder / "elsewhere").mkdir()
    named = run(folder / "elsewhere", "--config", "../ssi.toml", "search", "word20", "--json")
    assert json.loads(named.stdout)["hits"] == json.loads(found.stdout)["hits"]
    # A command's own table wins over [default], and the command line over both.
    with (folder / "ssi.toml").open("a") as file:
        file.write('\n[search]\nindex = "nope"\n')
    assert "nope" in run(folder, "search", "word20").stderr
    assert run(folder, "search", "word20", "--index", "shop").exit_code == 0
    assert serve == "ssi serve"


@pytest.mark.parametrize(
    ("typed", "asked_twice"),
    [((), False), (("--model", "models"), False), (("--model", "m", "--models", "models"), True)],
)
def test_a_model_on_the_command_line_takes_the_place_of_the_models_of_the_configuration(
    folder: Path, typed: tuple[str, ...], asked_twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(*_: object, **__: object) -> None:
        raise InputError("no service in this test")

    monkeypatch.setattr("reranker.service.server.listen", listen)
    assert run(folder, *INIT).exit_code == 0
    for name in ("models", "m"):
        (folder / name).mkdir()
    result = run(folder, "serve", *typed)
    assert ("give either --model or --models" if asked_twice else "no service in this test") in result.stderr


def test_training_reads_the_documents_of_the_index_once_until_it_is_done(folder: Path) -> None:
    names = list(random_documents(60))
    (folder / "links.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(names)))
    of_file = [{"id": name, **source} for name, source in sorted(random_documents(60).items())]
    (folder / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in of_file))
    options = ("--links", "links.tsv", "--dim", "4", "--json")
    engine = ("--engine", "tantivy:index", "--index", "shop")
    ids = {
        json.loads(run(folder, "train", *source, *options, "--model", name).stdout)["model_id"]
        for name, source in {"a": engine, "b": ("--docs", "docs.jsonl")}.items()
    }
    assert len(ids) == 1, "the index and the file hold the same documents"
    neither = run(folder, "train", *options, "--model", "c")
    assert neither.exit_code == 2 and "--docs FILE" in neither.stderr and "--index" in neither.stderr
    (folder / "none.tsv").write_text("nobody\tnothing\n")
    assert run(folder, "train", *engine, "--links", "none.tsv", "--model", "d").exit_code != 0
    (left,) = folder.glob("d.documents-*.jsonl")
    assert left.read_text().count("\n") == 60
    left.write_text(json.dumps(of_file[0]) + "\n")
    assert run(folder, "train", *engine, *options, "--model", "d", "--fields", "text").exit_code == 0, "read anew"
    kept = run(folder, "train", *engine, *options, "--model", "d")
    assert "documents that an interrupted run wrote to" in kept.stderr and kept.exit_code != 0
    left.unlink()
    fresh = run(folder, "train", *engine, *options, "--model", "d")
    assert json.loads(fresh.stdout)["model_id"] in ids


def test_judgement_lists_of_the_engine_become_files(folder: Path) -> None:
    engine = open_engine(f"tantivy:{folder / 'index'}")
    lists: list[dict[str, Any]] = [
        {"judgmentRatings": [{"query": "red  shoes", "ratings": [{"docId": "d1", "rating": "2.0"}]}]},
        {"judgmentRatings": [{"query": "red  shoes", "ratings": [{"docId": "d2", "rating": "0.0"}]}, {"query": "hat"}]},
    ]
    mapping = {"dynamic": False, "properties": {}}
    fill(engine, JUDGEMENTS, mapping, {str(number): source for number, source in enumerate(lists)})
    engine.close()
    report = json.loads(run(folder, *INIT, "--json").stdout)
    assert report["judged_queries"] == 2
    assert report["next"][0] == "ssi train --qrels qrels.tsv --query-file queries.tsv"
    assert (folder / "queries.tsv").read_text() == "q1\that\nq2\tred shoes\n"
    assert (folder / "qrels.tsv").read_text() == "q2\td1\t2.0\nq2\td2\t0.0\n"


def test_the_weights_of_the_body_are_those_of_the_best_order_of_the_judged_queries(folder: Path) -> None:
    """The wanted document of each query has its word in the title, four others have it several times in the text."""
    engine = open_engine(f"tantivy:{folder / 'index'}")
    documents: dict[str, Mapping[str, Any]] = {}
    for number in range(12):
        word = f"thing{number}"
        documents[f"{word}-wanted"] = {
            "title": f"{word} for a house and a garden of ours",
            "text": f"old wares {number}",
        }
        for other in range(4):
            documents[f"{word}-{other}"] = {"title": f"shelf {number} {other}", "text": f"{word} {word} {word}"}
    fill(engine, "store", {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}, documents)
    rated: list[dict[str, Any]] = [
        {"query": f"thing{number}", "ratings": [{"docId": f"thing{number}-wanted", "rating": "1"}]}
        for number in range(12)
    ]
    rated.append({"query": "shelf", "ratings": [{"docId": "thing0-1", "rating": "unknown"}]})
    rated[0]["ratings"] += [{"docId": "thing0-2", "rating": rating} for rating in ("nan", "inf", "1_0")]
    fill(engine, JUDGEMENTS, {"dynamic": False, "properties": {}}, {"list": {"judgmentRatings": rated}})
    engine.close()
    report = json.loads(run(folder, "init", "--engine", "tantivy:index", "--index", "store", "--json").stdout)
    assert report["weights"]["title"] > report["weights"]["text"]
    body = json.loads((folder / "body.json").read_text())
    assert body["query"]["multi_match"]["fields"][0] == f"title^{report['weights']['title']:g}"


def test_fields_have_roles_by_their_content_and_others_have_reasons() -> None:
    sample: list[Mapping[str, Any]] = [
        {
            "name": f"red shoe {n}",
            "tags": ["shoes", "red" if n % 2 else "new"],
            "about": f"words and more words {n} " * 20,
        }
        for n in range(20)
    ]
    properties = {
        "tags": {"type": "text"},
        "about": {"type": "text", "copy_to": "all"},
        "name": {"type": "text", "copy_to": ["all"], "fields": {"en": {"type": "text", "analyzer": "english"}}},
        "all": {"type": "text"},
        "brand": {"type": "keyword"},
        "offers": {"type": "nested", "properties": {"seller": {"type": "text"}}},
    }
    fields, others = examined([IndexInfo("shop", properties, {})], sample)
    assert [(field.path, field.role) for field in fields if not field.why_not] == [
        ("name", "title"),
        ("about", "text"),
        ("tags", "label"),
    ]
    assert next(field.why_not for field in fields if field.path == "all").startswith(
        "is filled by copy_to from about, name"
    )
    assert set(others) == {"brand", "name.en", "offers"}
    assert "seller" in others["offers"] and "english" in others["name.en"] and "keyword" in others["brand"]


def test_what_cannot_be_begun_with_is_told(folder: Path) -> None:
    absent = run(folder, "init", "--engine", "tantivy:index", "--index", "nope")
    assert absent.exit_code == 3 and "'nope'" in absent.stderr
    engine = open_engine(f"tantivy:{folder / 'index'}")
    fill(engine, "tags", {"properties": {"tag": {"type": "keyword"}}}, {"a": {"tag": "x"}})
    engine.create_index("empty", MAPPING)
    engine.close()
    for index, said in {"tags": "no text field", "empty": "no document"}.items():
        result = run(folder, "init", "--engine", "tantivy:index", "--index", index)
        assert result.exit_code == 3 and said in result.stderr
    assert not (folder / "ssi.toml").exists()


@pytest.mark.parametrize(
    ("name", "wanted", "note"),
    [
        ("", "auto", ""),
        ("standard", "auto", ""),
        ("english", "english", ""),
        ("german", "german", ""),
        ("kuromoji", "japanese", "extra"),
        ("my_chain", "auto", "engine:shop/title"),
    ],
)
def test_the_nearest_analyzer(name: str, wanted: str, note: str) -> None:
    analyzer, said = analyzer_of(name, "shop/title")
    assert analyzer == wanted and note in said and bool(said) == bool(note)


def test_fields_of_objects_count_and_ours_do_not() -> None:
    properties = {
        "name": {"type": "text", "analyzer": "english", "fields": {"raw": {"type": "keyword"}}},
        "maker": {"properties": {"name": {"type": "text"}, "code": {"type": "keyword"}}},
        "offers": {"type": "nested", "properties": {"title": {"type": "text"}}},
        "hidden": {"type": "text", "index": False},
        "ssi_0123456789ab_src": {"type": "keyword"},
        "ssi_0123456789ab_x": {"type": "text"},
    }
    assert dict(text_fields(properties)) == {"name": "english", "maker.name": ""}
    html = field_in_sample("body", "", [{"body": "<p>red <b>shoes</b></p>"}, {"body": "<p>hat</p>"}, {}])
    assert html.html and html.share == pytest.approx(2 / 3) and not html.why_not
    assert field_in_sample("body", "", [{"body": "same"}, {"body": "same"}]).why_not == "is the same in every document"


def test_the_engines_analyzer_is_recommended_by_the_alias_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"tantivy:{tmp_path / 'engine'}"
    engine = open_engine(spec)
    fill(engine, "shop-1", {"properties": {"text": {"type": "text"}}}, random_documents(20))
    engine.swap_alias("shop", "shop-1")
    engine.close()
    properties = {"text": {"type": "text", "analyzer": "my_chain"}}
    # The embedded engine has no analyzers of its own.
    monkeypatch.setattr(LocalEngine, "index_info", lambda _, index: IndexInfo(index, properties))
    told = json.loads(run(tmp_path, "init", "--engine", spec, "--index", "shop", "--json").stdout)["note"]
    assert "set analyzer to engine:shop/text" in told
