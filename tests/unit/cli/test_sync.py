"""``ssi sync --dry-run``: what would be written is counted, and nothing is."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.engines.protocol import WriteOp
from reranker.models.model_folder import save_model
from tests.services import small_index


def test_a_dry_run_counts_what_the_run_then_writes(tmp_path: Path) -> None:
    spec = f"tantivy:{tmp_path / 'index'}"
    engine = open_engine(spec)
    served = small_index(tmp_path, engine, n=20)
    save_model(served.model, tmp_path / "model")
    fields = {**engine.get("docs", ["d1"])[0].source}  # type: ignore[union-attr]
    engine.bulk(
        "docs",
        [
            WriteOp("index", "new1", {"title": "word3", "text": "word4"}),
            WriteOp("index", "new2", {"title": "word5", "text": "word4"}),
            WriteOp("index", "d1", {**fields, "text": "word9 word9"}),
        ],
    )
    engine.refresh("docs")
    engine.close()

    def sync(*options: str) -> Result:
        rejects = ("--rejects", str(tmp_path / "rejects.jsonl"))
        common = ("--engine", spec, "--index", "docs", "--model", str(tmp_path / "model"), *rejects)
        return CliRunner().invoke(main, ["sync", *common, *options], catch_exceptions=False)

    for _ in range(2):
        counted = json.loads(sync("--dry-run", "--json").stdout)
        assert counted == {"index": "docs", "documents": 22, "missing": 2, "stale": 1}
    assert "would write 3 of 22 documents" in sync("--dry-run").stdout
    assert json.loads(sync("--json").stdout)["written"] == 3
    counted = json.loads(sync("--dry-run", "--json").stdout)
    assert counted["missing"] == counted["stale"] == 0
    assert sync("--dry-run", "--follow").exit_code == 2


def test_an_engine_without_dates_refuses_the_field_before_anything_is_read(tmp_path: Path) -> None:
    spec = f"tantivy:{tmp_path / 'index'}"
    engine = open_engine(spec)
    served = small_index(tmp_path, engine, n=5)
    save_model(served.model, tmp_path / "model")
    engine.close()
    at = ("--engine", spec, "--index", "docs", "--model", str(tmp_path / "model"), "--updated-field", "modifed")
    for options in ((), ("--dry-run",)):
        result = CliRunner().invoke(main, ["sync", *at, *options])
        assert result.exit_code == 4
        assert "cannot search by dates, which --updated-field modifed needs: omit it" in " ".join(result.stderr.split())
