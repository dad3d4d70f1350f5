"""The five lines of the README: train, index and search as functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reranker
from reranker.errors import TrainingError
from reranker.training import TrainConfig
from tests.unit.training.synthetic import synonyms, write_documents, write_links

QUICK = TrainConfig(learned_part="on", dim=10, epochs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    documents, links = synonyms()
    write_documents(folder / "docs.jsonl", documents)
    write_links(folder / "links.tsv", links)
    write_links(folder / "queries.tsv", [(f"q{source}", source) for source, _ in links[::5]])
    write_links(folder / "qrels.tsv", [(f"q{source}", target, "1") for source, target in links[::5]])
    pairs = zip(links[::5], reversed(links[::5]), strict=True)
    write_links(
        folder / "pairs.tsv", [(source, target, other) for (source, target), (_, other) in pairs if target != other]
    )
    return folder


@pytest.mark.parametrize("evidence", [("links",), ("qrels", "queries"), ("pairs",)], ids=" ".join)
def test_a_model_of_each_kind_of_evidence_searches(folder: Path, tmp_path: Path, evidence: tuple[str, ...]) -> None:
    files: dict[str, Any] = {name: folder / f"{name}.tsv" for name in evidence}
    model, report = reranker.train(folder / "docs.jsonl", **files, config=QUICK)
    assert model.U.shape[1] == report.result.U.shape[1]
    engine = f"tantivy:{tmp_path / 'index'}"
    assert reranker.index(engine, "docs", folder / "docs.jsonl", model).live
    page = reranker.search(engine, "docs", model, "en1x1", size=3)
    assert page.reranked and len(page.hits) == 3


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "no evidence given"),
        (("links", "pairs"), "links and pairs given"),
        (("qrels",), "qrels given: train on links, on qrels with queries, or on pairs"),
        (("links", "queries"), "links given"),
    ],
)
def test_one_kind_of_evidence_is_given(folder: Path, names: tuple[str, ...], said: str) -> None:
    files: dict[str, Any] = {name: folder / f"{name}.tsv" for name in names}
    with pytest.raises(TrainingError, match=said):
        reranker.train(folder / "docs.jsonl", **files, config=QUICK)
