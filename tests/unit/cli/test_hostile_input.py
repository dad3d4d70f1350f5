"""What people get wrong, typed as they would: a documented exit status, value, rule and remedy; no traceback."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reranker.cli.common import EXIT_CODES
from reranker.cli.main import main
from reranker.models.model_folder import save_model
from tests.served import model_of, random_documents

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Place:
    """A folder with good and bad files, a model, and an index."""

    path: Path
    closed_port: int

    def run(self, *arguments: str, environ: dict[str, str] | None = None) -> Result:
        """Type a command in the folder."""
        spelt = [argument.replace("{PORT}", str(self.closed_port)) for argument in arguments]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            return CliRunner().invoke(main, spelt, env=environ, catch_exceptions=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    path = tmp_path_factory.mktemp("place")
    documents = random_documents(60)
    lines = [json.dumps({"id": name, **source}) for name, source in documents.items()]
    good = "\n".join(lines).encode() + b"\n"
    (path / "docs.jsonl").write_bytes(good)
    packed = gzip.compress(good)
    (path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (path / "flipped.jsonl.gz").write_bytes(packed[:-8] + bytes(8))
    (path / "notgzip.jsonl").write_bytes(b"\x1f\x8b" + bytes(50))
    (path / "latin.jsonl").write_bytes(good + '{"id": "x", "text": "café"}\n'.encode("latin-1"))
    (path / "noid.jsonl").write_text('{"text": "nobody"}\n' * 3)
    (path / "empty.jsonl").write_text("")
    (path / "twice.jsonl").write_text(lines[0] + "\n" + lines[0] + "\n" + lines[1] + "\n")
    (path / "prose.txt").write_text("Dear Sir or Madam,\nthis is not a file of documents.\n")
    names = list(documents)
    (path / "links.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(names)))
    (path / "strangers.tsv").write_text("who\twhom\nyou\tme\n")
    (path / "columns.tsv").write_text("one column only\n")
    (path / "empty.tsv").write_text("")
    save_model(model_of(documents), path / "model")
    save_model(model_of(documents), path / "one-bit-off")
    tensors = max(
        (p for p in (path / "one-bit-off").resolve().rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.chmod(0o644)
    tensors.write_bytes(bytes(data))
    (path / "nomodel").mkdir()
    (path / "unknown.toml").write_text('[search]\nwindw = 3\n[engine]\nuser = "u"\n')
    (path / "enginekey.toml").write_text('[engine]\npasswort = "hunter2"\n')
    (path / "table.toml").write_text("[serach]\nwindow = 3\n")
    (path / "loose.toml").write_text("window = 3\n")
    (path / "syntax.toml").write_text("[search\n")
    (path / "value.toml").write_text('[search]\nwindow = "many"\n')
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    made = Place(path, port)
    done = made.run("index", "docs.jsonl", "--engine", "tantivy:index", "--index", "docs", "--model", "model")
    assert done.exit_code == 0, done.stderr
    return made


TANTIVY = ("--engine", "tantivy:index", "--index", "docs")
MODEL = ("--model", "model")
TRAIN = ("train", "--links", "links.tsv", "--model", "new", "--docs")
EVALUATE = ("evaluate", "--docs", "docs.jsonl", *MODEL, "--links-test")
DOWN = "elasticsearch:http://127.0.0.1:{PORT}"

CASES: list[tuple[Sequence[str], int, Sequence[str]]] = [
    # files
    ((*TRAIN, "absent.jsonl"), 3, ("absent.jsonl",)),
    ((*TRAIN, "cut.jsonl.gz"), 3, ("cut.jsonl.gz", "gzip")),
    ((*TRAIN, "flipped.jsonl.gz"), 3, ("flipped.jsonl.gz", "gzip")),
    ((*TRAIN, "notgzip.jsonl"), 3, ("notgzip.jsonl", "gzip")),
    ((*TRAIN, "empty.jsonl"), 6, ("empty.jsonl",)),
    ((*TRAIN, "prose.txt"), 6, ("prose.txt",)),
    ((*TRAIN, "noid.jsonl"), 6, ("noid.jsonl",)),
    (("train", "--docs", "docs.jsonl", "--model", "new", "--links", "absent.tsv"), 3, ("absent.tsv",)),
    (("train", "--docs", "docs.jsonl", "--model", "new", "--links", "empty.tsv"), 6, ("nothing to learn from",)),
    (
        ("train", "--docs", "docs.jsonl", "--model", "new", "--links", "columns.tsv"),
        6,
        ("nothing to learn from", "1 column"),
    ),
    (("train", "--docs", "docs.jsonl", "--model", "new"), 2, ("--links", "--qrels", "--pairs")),
    (("train", "--docs", "docs.jsonl", "--model", "new", "--links", "links.tsv", "--dim", "0"), 2, ("dim",)),
    (("train", "--docs", "docs.jsonl", "--model", "new", "--links", "links.tsv", "--fields", "a..b"), 2, ("a..b",)),
    ((*EVALUATE, "strangers.tsv"), 3, ("100% of the 2 test links cannot be used", "unknown query id (who, you)")),
    ((*EVALUATE, "strangers.tsv", "--allow-partial"), 3, ("no query is left", "source is no known document")),
    ((*EVALUATE, "absent.tsv"), 3, ("absent.tsv",)),
    (("index", "absent.jsonl", *TANTIVY), 3, ("absent.jsonl",)),
    (("index", "cut.jsonl.gz", "--engine", "tantivy:other", "--index", "cut"), 3, ("cut.jsonl.gz", "gzip")),
    # engines
    (("search", "x", "--engine", "solr:http://localhost", "--index", "docs", *MODEL), 2, ("tantivy:PATH",)),
    (("search", "x", "--engine", "tantivy:", "--index", "docs", *MODEL), 2, ("tantivy:PATH",)),
    (("search", "x", "--engine", "elasticsearch:localhost", "--index", "docs", *MODEL), 2, ("http://HOST:PORT",)),
    (("search", "x", "--engine", DOWN, "--index", "docs", *MODEL), 4, ("127.0.0.1:{PORT}",)),
    (("index", "docs.jsonl", "--engine", DOWN, "--index", "docs"), 4, ("127.0.0.1:{PORT}",)),
    (("versions", "--engine", DOWN, "--index", "docs"), 4, ("127.0.0.1:{PORT}",)),
    (("search", "x", "--engine", "tantivy:index", "--index", "absent", *MODEL), 4, ("absent",)),
    (("drift", "--engine", "tantivy:index", "--index", "absent", *MODEL), 4, ("absent",)),
    (("promote", "123456789abc", "--engine", "tantivy:index", "--index", "docs"), 3, ("123456789abc",)),
    # models
    (("search", "x", *TANTIVY, "--model", "absent"), 5, ("absent",)),
    (("search", "x", *TANTIVY, "--model", "nomodel"), 5, ("nomodel",)),
    (("search", "x", *TANTIVY, "--model", "one-bit-off"), 5, ("one-bit-off", "copy it again")),
    (("search", "x", *TANTIVY, "--model", "docs.jsonl"), 5, ("docs.jsonl",)),
    (("index", "docs.jsonl", *TANTIVY, "--model", "one-bit-off"), 5, ("one-bit-off", "copy it again")),
    (
        ("evaluate", "--docs", "docs.jsonl", "--links-test", "links.tsv", "--model", "one-bit-off"),
        5,
        ("one-bit-off", "copy it again"),
    ),
    # configuration
    (("--config", "unknown.toml", "search", "x"), 2, ("'windw'", "window")),
    (("--config", "enginekey.toml", "search", "x"), 2, ("'passwort'", "password")),
    (("--config", "table.toml", "search", "x"), 2, ("'serach'", "search")),
    (("--config", "loose.toml", "search", "x"), 2, ("'window'", "[search]")),
    (("--config", "syntax.toml", "search", "x"), 2, ("syntax.toml", "TOML")),
    (("--config", "absent.toml", "search", "x"), 2, ("absent.toml",)),
    (("--config", "value.toml", "search", "x", *TANTIVY, *MODEL), 2, ("many",)),
    (("seach",), 2, ("seach",)),
    (("demo", "--dir", "."), 7, ("--dir",)),
    (("demo", "--dir", "docs.jsonl"), 7, ("docs.jsonl", "--dir")),
]


@pytest.mark.parametrize(("arguments", "code", "said"), CASES, ids=[" ".join(case[0])[:70] for case in CASES])
def test_bad_input_has_a_message_and_an_exit_status(
    place: Place, arguments: Sequence[str], code: int, said: Sequence[str]
) -> None:
    result = place.run(*arguments)
    assert result.exit_code == code, result.stderr
    assert code in EXIT_CODES
    for part in said:
        assert part.replace("{PORT}", str(place.closed_port)) in result.stderr, result.stderr
    assert "Traceback" not in result.output
    assert "hunter2" not in result.output
    assert not (place.path / "new").exists()


@pytest.mark.parametrize("command", ["search x --model model", "versions", "index docs.jsonl"])
@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_a_password_in_the_url_is_refused_and_not_repeated(place: Place, command: str, kind: str) -> None:
    result = place.run(*command.split(), "--engine", f"{kind}:http://elastic:hunter2@localhost:9200", "--index", "d")
    assert result.exit_code == 2
    assert "SSI_ENGINE_PASSWORD" in result.stderr
    assert "hunter2" not in result.output


def test_keys_and_variables_are_the_names_of_options(place: Place) -> None:
    (place.path / "good.toml").write_text(
        '[search]\nengine = "tantivy:index"\nindex = "docs"\nmodel = "model"\njson = true\nsize = 3\n'
    )
    configured = place.run("--config", "good.toml", "search", "word1")
    assert configured.exit_code == 0, configured.stderr
    assert len(json.loads(configured.stdout)["hits"]) == 3
    environ = {"SSI_SEARCH_SIZE": "2", "SSI_CONFIG": "good.toml"}
    assert len(json.loads(place.run("search", "word1", environ=environ).stdout)["hits"]) == 2
    assert len(json.loads(place.run("search", "word1", "--size", "1", environ=environ).stdout)["hits"]) == 1
    spelt = {"SSI_SEARCH_ENGINE": "tantivy:index", "SSI_SEARCH_INDEX": "docs", "SSI_SEARCH_MODEL": "model"}
    assert place.run("search", "word1", environ=spelt).exit_code == 0


def test_half_a_credential_in_the_environment_is_told(place: Place) -> None:
    result = place.run("versions", "--engine", DOWN, "--index", "d", environ={"SSI_ENGINE_PASSWORD": "hunter2"})
    assert result.exit_code == 2
    assert "SSI_ENGINE_USER" in result.stderr
    assert "hunter2" not in result.output


def test_unknown_ids_in_links_are_counted_and_the_others_used(place: Place) -> None:
    mixed = (place.path / "links.tsv").read_text() + "who\twhom\n"
    (place.path / "mixed.tsv").write_text(mixed)
    result = place.run(
        "train",
        "--docs",
        "docs.jsonl",
        "--links",
        "mixed.tsv",
        "--model",
        "mixed",
        "--dim",
        "4",
    )
    assert result.exit_code == 8, result.stderr
    assert "left out: 1 unknown query id (who)" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("file", "refused"), [("latin.jsonl", 1), ("noid.jsonl", 3), ("prose.txt", 2)])
def test_bad_lines_are_rejected_and_kept(place: Place, file: str, refused: int) -> None:
    result = place.run("index", file, "--engine", "tantivy:rejecting", "--index", Path(file).stem, "--json")
    assert result.exit_code == 8, result.stderr
    kept = [json.loads(line) for line in (place.path / f"{file}.rejects.jsonl").read_text().splitlines()]
    assert len(kept) == refused
    assert all(one["line"] >= 1 and one["reason"] for one in kept)


def test_a_process_ends_with_the_status_and_one_line(place: Place) -> None:
    code = "from reranker.cli.main import main; main(prog_name='ssi')"
    done = subprocess.run(
        [sys.executable, "-c", code, "search", "x", *TANTIVY, "--model", "absent"],
        cwd=place.path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_package_runs_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "reranker", "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Usage: ssi ")
