"""A model class is added by one file (`toy_class`) and one line in the list of classes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import reranker.cli.train
from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.errors import ConfigError
from reranker.models.model_classes import MODEL_CLASSES, ModelClass
from reranker.models.model_folder import load_model
from reranker.rerank import Reranker, RerankSettings
from reranker.text.rows import inner_products
from reranker.training import TrainConfig
from tests.served import serve
from tests.unit.training.synthetic import synonyms, write_documents, write_links

BODY = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the class before the command reads the list."""
    line = ModelClass("toy", "products of words in few dimensions", "tests.unit.training.toy_class:fit")
    with monkeypatch.context() as patch:
        patch.setitem(MODEL_CLASSES, "toy", line)
        _read_again()
        yield
    _read_again()


def _read_again() -> None:
    """Make the command anew, also where an earlier test has used it."""
    importlib.reload(reranker.cli.train)
    main.commands.pop("train", None)


@pytest.mark.usefixtures("toy")
def test_a_new_class_is_trained_served_by_fetch_and_found_in_the_help(tmp_path: Path) -> None:
    documents, links = synonyms()
    docs, pairs = write_documents(tmp_path / "docs.jsonl", documents), write_links(tmp_path / "links.tsv", links)

    told = " ".join(CliRunner().invoke(main, ["train", "--help-expert"]).output.split())
    assert "|toy|" in told.replace(" ", "")
    assert "toy: products of words in few dimensions" in told

    result = CliRunner().invoke(
        main,
        [
            "train",
            "--docs",
            str(docs),
            "--links",
            str(pairs),
            "--model",
            str(tmp_path / "model"),
            "--model-class",
            "toy",
            "--fields",
            "title^1,text^1",
            "--dim",
            "12",
            "--generalise",
            "links",
            "--no-compare",
            "--json",
        ],
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["model_class"] == "toy"
    assert report["valid_map"] > report["lexical_map"] + 0.1

    model = load_model(tmp_path / "model")
    engine = open_engine(f"tantivy:{tmp_path / 'engine'}")
    sources = {one["id"]: {"title": one["title"], "text": one["text"]} for one in documents}
    served = serve(engine, "toy", tmp_path, sources, model)
    reranker_ = Reranker(engine, "toy", model, route="fetch", settings=RerankSettings(window=50, deadline_ms=None))
    page = reranker_.search("en3x1 filler3", BODY, size=20)
    assert page.reranked
    assert page.n_encoded == 0
    queries, encoded = model.encode_queries(["en3x1 filler3"]), model.encoder.encode([sources[h.id] for h in page.hits])
    expected = (queries.vectors @ encoded.vectors.T + model.identity * inner_products(queries.rows, encoded.rows))[0]
    assert [hit.model_score for hit in page.hits] == pytest.approx(expected.tolist(), abs=1e-4)
    assert served.documents.keys() >= {hit.id for hit in page.hits}
    engine.close()


@pytest.mark.usefixtures("toy")
def test_refusals_know_the_new_class() -> None:
    with pytest.raises(ConfigError, match=r"choose one of .*cubic, toy, auto"):
        TrainConfig(model_class="quartic")
    with pytest.raises(ConfigError, match="query_side_only learns U"):
        TrainConfig(model_class="toy", query_side_only=True)
