"""``ssi search`` names the fields of a body that can find nothing."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.engines.bodies import searched_fields
from reranker.models.model_folder import save_model
from tests.services import small_index


def test_a_body_whose_field_matches_nothing_is_noted(tmp_path: Path) -> None:
    spec = f"tantivy:{tmp_path / 'index'}"
    engine = open_engine(spec)
    save_model(small_index(tmp_path, engine, n=20).model, tmp_path / "model")
    engine.close()

    def search(query: str, fields: list[str]) -> Result:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"query": {"multi_match": {"query": "{{query}}", "fields": fields}}}))
        common = ("--engine", spec, "--index", "docs", "--model", str(tmp_path / "model"))
        return CliRunner().invoke(main, ["search", query, *common, "--body", str(body)], catch_exceptions=False)

    shown = " ".join(search("word1", ["titel^2"]).stderr.split())
    assert "the field 'titel', which index 'docs' does not have: did you mean title?" in shown
    assert "does not have" not in search("word1", ["title", "titel"]).stderr, "documents are found"
    assert "does not have" not in search("neverseen", ["title", "text"]).stderr


def test_the_searched_fields_of_a_query() -> None:
    query = {
        "bool": {
            "must": {"match": {"title": "{{query}}"}},
            "should": [
                {"query_string": {"query": "{{query}}", "fields": ["a^3", "b.*"]}},
                {"match": {"c": {"query": "x"}}},
            ],
            "filter": [{"term": {"tag": "x"}}],
        }
    }
    assert list(searched_fields(query)) == ["title", "a", "c"]
