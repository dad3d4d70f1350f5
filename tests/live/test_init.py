"""An index that a team filled by itself, on each engine: from `ssi init` to reranked hits, and back to how it was."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.engines import Engine, WriteOp, open_engine
from reranker.releases import forget_control
from tests.served import random_documents

INDEX = "ready-made"
DOCUMENTS = {
    name: {**source, "url": f"https://example.org/{name}", "price": 1.5}
    for name, source in random_documents(200).items()
}


@pytest.fixture(params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    url = request.getfixturevalue(f"{request.param}_url")
    with closing(open_engine(f"{request.param}:{url}")) as engine:
        # The mapping is what the engine makes of the documents by itself.
        engine.create_index(INDEX, {})
        engine.bulk(INDEX, [WriteOp("index", name, source) for name, source in DOCUMENTS.items()])
        engine.refresh(INDEX)
        try:
            yield engine
        finally:
            engine.delete_index(INDEX)
            forget_control(engine, [INDEX])


def test_from_an_index_to_reranked_hits_and_back(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))

    def run(line: str) -> str:
        result = CliRunner().invoke(main, shlex.split(line, comments=True)[1:], catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
        return result.stdout

    report = json.loads(run(f"ssi init --engine {engine.spec} --index {INDEX} --json"))
    why = {field["path"]: field["why_not"] for field in report["fields"]}
    assert (why["title"], why["text"], why["url"]) == ("", "", "contains URLs or paths")
    assert report["documents"] == 200 and "ssi serve --proxy --port 9201" in report["next"][-1]
    pairs = itertools.pairwise(DOCUMENTS)
    Path("links.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    train, revectorize, *_ = report["next"]
    run(f"{train.partition('#')[0]} --dim 4")
    run(revectorize)
    found = json.loads(run("ssi search 'word1 word2' --json"))
    assert found["reranked"] and found["n_encoded"] == 0 and found["hits"]
    assert "200" in run("ssi uninstall --dry-run")
    assert "stay in the mapping" in run("ssi uninstall")
    engine.refresh(INDEX)
    after = {document.id: document.source for batch in engine.scan(INDEX) for document in batch}
    assert after == DOCUMENTS
