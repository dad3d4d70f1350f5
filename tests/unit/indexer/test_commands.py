"""The commands of the indexer: from documents and a model folder to a served, renewed, cleaned index."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from indexer.renewal import RenewReport
from reranker.cli import common
from reranker.cli.main import main
from reranker.engines import WriteOp, open_engine
from reranker.engines.local import LocalEngine
from reranker.errors import EngineAuthError
from reranker.models.model_folder import save_model
from reranker.releases import default_store
from reranker.store import VectorStore
from tests.live.helpers import contents, write_lines
from tests.served import model_of, random_documents
from tests.unit.indexer.stand_ins import FakeTime

DOCUMENTS = random_documents(40)
COMMANDS = ("index", "revectorize", "sync", "versions", "promote", "rollback", "gc", "drift")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))
    write_lines(tmp_path / "docs.jsonl", DOCUMENTS)
    save_model(model_of(DOCUMENTS), tmp_path / "model")
    save_model(model_of(DOCUMENTS, n_dims=4), tmp_path / "other")
    return tmp_path


def ssi(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def ask(*arguments: object, code: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(ssi(*arguments, "--json", code=code).stdout)
    return value


def where(folder: Path) -> list[str]:
    return ["--engine", f"tantivy:{folder / 'engine'}", "--index", "docs"]


def test_a_life_of_an_index(folder: Path) -> None:
    at = where(folder)
    built = ask("index", "docs.jsonl", *at, "--model", "model", "--write-store", "default")
    assert (built["indexed"], built["live"]) == (40, True)
    assert not (folder / "docs.jsonl.rejects.jsonl").exists()
    store = default_store(folder / "model", f"tantivy:{folder / 'engine'}", "docs")
    assert len(VectorStore.open(store)) == 40
    assert ask("versions", *at)["versions"][0]["with_vector"] == 40

    planned = ask("revectorize", *at, "--model", "other", "--dry-run")
    assert (planned["documents"], planned["reasons"]) == (40, [])
    assert len(ask("versions", *at)["versions"]) == 1
    assert ask("revectorize", *at, "--model", "other")["written"] == 40
    listed = ask("versions", *at)["versions"]
    assert [version["live"] for version in listed] == [True, False]
    new = listed[1]["model_id"]
    assert ask("promote", new[:12], *at)["live"] == new
    assert ask("rollback", *at)["live"] == listed[0]["model_id"]
    assert ask("sync", *at, "--model", "other")["written"] == 0
    assert ask("gc", *at, "--dry-run")["drop"] == []
    ask("promote", new[:12], *at)
    assert ask("gc", *at, "--keep", "0")["emptied"] == 40
    assert ask("drift", *at, "--model", "other")["retrain"] is False

    rebuilt = ask("index", "docs.jsonl", *at, "--model", "other", "--rebuild")
    assert rebuilt["retired"] == ["docs-000001"]
    assert ask("gc", *at)["deleted"] == ["docs-000001"]


def test_the_same_as_text(folder: Path) -> None:
    at = where(folder)
    assert "40 documents in docs-000001" in ssi("index", "docs.jsonl", *at, "--model", "model").stdout
    assert "next: ssi promote" in ssi("revectorize", *at, "--model", "other").stdout
    for name in ("versions", "gc"):
        assert ssi(name, *at).stdout
    assert "no need to retrain" in ssi("drift", *at, "--model", "model").stdout
    assert "40 documents read" in ssi("sync", *at, "--model", "model").stdout


def test_refused_lines_set_the_exit_status_and_are_kept(folder: Path) -> None:
    with (folder / "docs.jsonl").open("a") as file:
        file.write("{broken\n")
    result = ssi("index", "docs.jsonl", *where(folder), code=8)
    assert "1 lines rejected" in result.stdout
    assert "documents: 41 given = 40 used + 1 left out: 1 not_json (line 41)" in " ".join(result.stderr.split())
    assert json.loads((folder / "docs.jsonl.rejects.jsonl").read_text())["line"] == 41


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["index", "nowhere.jsonl"], 3, "does not exist"),
        (["index", "docs.jsonl", "--write-store", "default"], 2, "--model"),
        (["index", "docs.jsonl", "--model", "nowhere"], 5, "nowhere"),
        (["index", "docs.jsonl", "--routes", "sideways"], 2, "sideways"),
        (["index", "docs.jsonl", "--model", "model", "--routes", "inside"], 2, "was removed in 0.2"),
        (["revectorize", "--model", "model"], 4, "ssi index"),
        (["versions"], 3, "no index"),
        (["promote", "abcdef"], 3, "there is no index 'docs'"),
        (["rollback"], 3, "there is no index 'docs'"),
        (["gc"], 3, "there is no index 'docs'"),
    ],
)
def test_failures_have_a_clear_message_and_their_exit_status(
    folder: Path, arguments: list[str], code: int, words: str
) -> None:
    result = ssi(*arguments, *where(folder), code=code)
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_role_that_may_only_read_changes_nothing_and_reads_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssi("index", "docs.jsonl", *where(folder), "--model", "model")
    ssi("revectorize", *where(folder), "--model", "other")
    other = ask("versions", *where(folder))["versions"][1]["model_id"]
    engine = open_engine(f"tantivy:{folder / 'engine'}")
    before = [contents(engine, name) for name in ("docs", "ssi-control")]

    def refused(*_: object, **__: object) -> None:
        raise EngineAuthError("the engine answered 403: use credentials whose role allows this", status=403)

    with monkeypatch.context() as patch:
        for name in ("bulk", "create_index", "delete_index", "put_properties", "swap_alias", "refresh"):
            patch.setattr(LocalEngine, name, refused)
        for reads in (
            ["versions"],
            ["gc", "--dry-run"],
            ["revectorize", "--model", "other", "--dry-run"],
            ["drift", "--model", "model"],
            ["search", "word1", "--model", "model"],
        ):
            ssi(*reads, *where(folder))
        # It reads, and finds nothing there.
        engine_alone = ["--engine", f"tantivy:{folder / 'engine'}", "--queries-index", "docs", "--events-index", "docs"]
        ssi("interleave", "report", *engine_alone, code=3)
        for writes in (
            ["index", "docs.jsonl", "--model", "other"],
            ["index", "docs.jsonl", "--rebuild"],
            ["revectorize", "--model", "model"],
            ["sync", "--model", "model"],
            ["promote", other],
            ["promote", other, "--force"],
            ["gc", "--keep", "0"],
        ):
            assert "use credentials whose role allows this" in ssi(*writes, *where(folder), code=4).stderr, writes
    assert [contents(engine, name) for name in ("docs", "ssi-control")] == before


def test_a_field_that_no_document_has_is_refused_or_said(folder: Path) -> None:
    odd = {f"odd{name}": {"titel": d["title"], "body": d["text"]} for name, d in DOCUMENTS.items()}
    write_lines(folder / "odd.jsonl", odd)
    index = ["index", "odd.jsonl", *where(folder), "--model", "model"]
    told = "has the field 'title', which the model reads. The most similar field names in the documents are titel"
    assert told in " ".join(ssi(*index, code=3).stderr.split())
    assert not open_engine(f"tantivy:{folder / 'engine'}").index_names("docs")
    ssi("index", "docs.jsonl", *where(folder), "--model", "model")
    assert told in " ".join(ssi(*index, "--rebuild", code=3).stderr.split())
    assert told in " ".join(ssi(*index).stderr.split())
    part = {name: {"text": d["text"]} for name, d in DOCUMENTS.items()}
    write_lines(folder / "part.jsonl", part)
    assert "no document" not in ssi("index", "part.jsonl", *where(folder), "--model", "model").stderr


def test_failures_on_an_index_without_a_version(folder: Path) -> None:
    ssi("index", "docs.jsonl", *where(folder))
    for arguments, code, words in (
        (["promote", "abcdef"], 3, "is no version of index 'docs'; registered: none"),
        (["rollback"], 7, "no earlier live version"),
        (["gc"], 7, "no version is live"),
    ):
        assert words in " ".join(ssi(*arguments, *where(folder), code=code).stderr.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name: str) -> None:
    text = ssi(name, "--help").stdout
    assert "Examples:" in text
    assert f"ssi {name}" in text


def test_an_engine_that_is_away_is_told(folder: Path) -> None:
    at = ["--engine", "elasticsearch:http://127.0.0.1:9", "--index", "docs"]
    result = ssi("index", "docs.jsonl", *at, code=4)
    assert "check that it is running" in result.stderr


def test_following_goes_on_after_a_refused_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [RenewReport(documents=5, rejected=1), RenewReport(documents=7, written=1)]
    monkeypatch.setattr("indexer.renewal.sync", lambda *_, **__: reports.pop(0))
    monkeypatch.setattr("indexer.renewal.follow.__kwdefaults__", {"sleep": lambda _: None})
    result = CliRunner().invoke(main, [*map(str, ("sync", *where(folder), "--model", folder / "model", "--follow"))])
    assert "5 documents read" in result.stdout and "7 documents read" in result.stdout
    assert isinstance(result.exception, IndexError)  # there is no third


def test_following_says_nothing_of_rounds_without_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssi("index", "docs.jsonl", *where(folder), "--model", "model")
    reports = [RenewReport(documents=n, written=n == 8) for n in (5, 6, 7, 8, 9)]
    monkeypatch.setattr("indexer.renewal.sync", lambda *_, **__: reports.pop(0))
    monkeypatch.setattr("indexer.renewal.follow.__kwdefaults__", {"sleep": lambda _: None})
    result = CliRunner().invoke(main, [*map(str, ("sync", *where(folder), "--model", folder / "model", "--follow"))])
    assert re.findall(r"(\d) documents read, (\d) written", result.stdout) == [("5", "0"), ("8", "1")]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_second_pass_has_its_own_total_and_rate(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr("reranker.cli.common.time.monotonic", clock.clock)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    bars: list[Any] = []

    def started(bar: Any) -> None:
        bars.append(bar)

    monkeypatch.setattr("rich.progress.Progress.start", started)
    first, second = (100, 100) if terminal else (20, 1000)
    with common.progress("revectorize shop") as update:
        for done, total in ((10, first), (first, first), (0, second), (50, second), (100, second)):
            clock.sleep(20)
            update(done, total)
            if terminal and done == 50:
                (task,) = bars[0].tasks
                assert (task.completed, task.total, task.finished, task.finished_speed) == (50, 100, False, None)
                return
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("revectorize shop: 10 of 20, 20 s left (0.5 ")
    assert not any(" 0 of " in line for line in lines), "a pass that begins has no rate yet"
    assert lines[-1].startswith("revectorize shop (pass 2): 100 of 1,000, 360 s left (2.5 ")


def test_several_routes_are_told_with_commas(folder: Path) -> None:
    at = where(folder)
    ssi("index", "docs.jsonl", *at, "--model", "model", "--routes", "fetch, beside", "--write-store", "default")
    ssi("revectorize", *at, "--model", "model", "--routes", "beside,fetch", "--routes", "fetch")
    assert "'sideways' is not one of" in ssi("index", "docs.jsonl", *at, "--routes", "fetch,sideways", code=2).stderr


def test_an_index_that_routes_is_refused_before_anything_is_sent(folder: Path) -> None:
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        engine.create_index("docs", {"_routing": {"required": True}})
    result = ssi("index", "docs.jsonl", *where(folder), "--model", "model", code=7)
    assert "routing is required" in result.stderr and "is live" not in result.stdout


def test_versions_tell_what_is_stale(folder: Path) -> None:
    at = where(folder)
    ssi("index", "docs.jsonl", *at, "--model", "model")
    ssi("revectorize", *at, "--model", "other")
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        engine.bulk("docs", [WriteOp("update", f"d{k}", {"text": "edited"}) for k in range(3)])
        engine.refresh("docs")
    ssi("sync", *at, "--model", "model")
    versions = ask("versions", *at)["versions"]
    assert [one["stale"] for one in versions] == [0, 3]
    assert [one["stale"] for one in ask("versions", *at, "--quick")["versions"]] == [None, None]
    assert "3 documents of 'docs' have changed" in ssi("promote", versions[1]["model_id"], *at, code=7).stderr
    assert ssi("promote", versions[1]["model_id"], *at, "--force").stdout.startswith("live for docs")
    assert "changed since" not in ssi("rollback", *at).stderr


RENAMED = {name: {"titel": one["title"], "body": one["text"]} for name, one in DOCUMENTS.items()}
FOREIGN = {name: {key: text.replace("word", "mot") for key, text in one.items()} for name, one in DOCUMENTS.items()}


@pytest.mark.parametrize("command", [("revectorize",), ("revectorize", "--dry-run"), ("sync",)])
def test_a_model_none_of_whose_fields_the_index_has_is_refused(folder: Path, command: tuple[str, ...]) -> None:
    write_lines(folder / "renamed.jsonl", RENAMED)
    ssi("index", "renamed.jsonl", *where(folder))
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        before = contents(engine, "docs")
    message = " ".join(ssi(*command, *where(folder), "--model", "model", code=7).stderr.split())
    assert "(title, text)" in message and "titel" in message and "--fields" in message
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        assert contents(engine, "docs") == before
        assert not engine.index_names("ssi-control")
        assert not [name for name in engine.index_info("docs").properties if name.startswith("ssi_")]


def test_documents_that_fit_the_model_as_little_as_their_index_are_refused(folder: Path) -> None:
    write_lines(folder / "renamed.jsonl", RENAMED)
    ssi("index", "renamed.jsonl", *where(folder))
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        before = contents(engine, "docs")
    assert "titel" in ssi("index", "renamed.jsonl", *where(folder), "--model", "model", code=3).stderr
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        assert contents(engine, "docs") == before


def test_a_model_of_other_texts_is_noted(folder: Path) -> None:
    write_lines(folder / "foreign.jsonl", FOREIGN)
    words = "are in the model's vocabulary"
    index = ssi("index", "foreign.jsonl", *where(folder), "--model", "model")
    assert words in " ".join(index.stderr.split())
    revectorize = ssi("revectorize", *where(folder), "--model", "model", "--dry-run")
    assert words in " ".join(revectorize.stderr.split())
    assert words in " ".join(ssi("sync", *where(folder), "--model", "model").stderr.split())
    vectorize = ["vectorize", "--model", "model", "--out", "vectors.parquet", "--docs"]
    assert words in " ".join(ssi(*vectorize, "foreign.jsonl").stderr.split())
    fitting = ssi("index", "docs.jsonl", *where(folder)[:2], "--index", "other", "--model", "model")
    assert words not in " ".join(fitting.stderr.split())
    assert words not in ssi("sync", *where(folder)[:2], "--index", "other", "--model", "model").stderr
    fitting = ssi(*vectorize, "docs.jsonl")
    assert words not in fitting.stderr and "documents: 40 given, all used" in fitting.stderr


def test_following_notes_a_model_of_other_texts_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(folder / "foreign.jsonl", FOREIGN)
    ssi("index", "foreign.jsonl", *where(folder), "--model", "model")

    def three_rounds(run: Callable[[], RenewReport], _interval: float) -> Iterator[RenewReport]:
        for _ in range(3):
            yield run()

    monkeypatch.setattr("indexer.renewal.follow", three_rounds)
    result = ssi("sync", *where(folder), "--model", "model", "--follow")
    assert result.stderr.count("note: only") == 1


def test_sync_notes_a_field_of_the_model_that_no_document_has(folder: Path) -> None:
    part = {name: {"text": one["text"]} for name, one in DOCUMENTS.items()}
    write_lines(folder / "part.jsonl", part)
    ssi("index", "part.jsonl", *where(folder), "--model", "model")
    told = " ".join(ssi("sync", *where(folder), "--model", "model").stderr.split())
    assert "note: none of 40 sampled documents has text in the field 'title'" in told


def test_versions_are_outdated_where_documents_changed_and_complete_after_a_sync(folder: Path) -> None:
    at = where(folder)
    ssi("index", "docs.jsonl", *at, "--model", "model")
    ssi("sync", *at, "--model", "model")

    def state() -> tuple[str, int]:
        version = ask("versions", *at)["versions"][0]
        return version["state"], version["stale"]

    assert state() == ("complete", 0)
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        engine.bulk("docs", [WriteOp("update", "d1", {"text": "word1 word1"})])
        engine.refresh("docs")
    assert state() == ("outdated", 1)
    assert "ssi sync --engine" in " ".join(ssi("versions", *at).stderr.split())
    ssi("sync", *at, "--model", "model")
    assert state() == ("complete", 0)
    with closing(open_engine(f"tantivy:{folder / 'engine'}")) as engine:
        engine.bulk("docs", [WriteOp("index", "new", {"text": "word1 word1"})])
        engine.refresh("docs")
    assert state() == ("outdated", 0)
