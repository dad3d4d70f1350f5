"""Stems that the model has and the index has not: they are named, and what they give is measured without the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.engines.local import LocalEngine
from reranker.engines.protocol import WriteOp
from reranker.errors import EngineAuthError
from reranker.evaluation import paired_test
from reranker.models.model_folder import save_model
from reranker.rerank.calibration.comparison import COMPARED, OrderComparison
from reranker.rerank.stems import stems_sentence, unstemmed_fields
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from tests.engines.memory import memory_engine
from tests.served import BM25, MEMORY_BM25, Documents, model_of

ROOTS = "paint walk jump connect print plant start climb cook clean test lift fish mount".split()
TWO_FIELDS = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^3", "text", "tag"]}}}


def inflected_documents() -> Documents:
    """Return two documents of each root, in different forms."""
    forms = [f"{root}{ending}" for root in ROOTS for ending in ("ing", "s")]
    return {f"d{n}": {"title": f"shop {form}", "text": f"{form} shop"} for n, form in enumerate(forms)}


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = memory_engine()
    english = {"english": {"type": "text"}}
    properties = {"title": {"type": "text", "fields": english}, "text": {"type": "text"}, "tag": {"type": "keyword"}}
    engine.create_index("docs", {"properties": properties})
    engine.bulk("docs", [WriteOp("index", name, source) for name, source in inflected_documents().items()])
    yield engine
    engine.close()


def with_stems(monkeypatch: pytest.MonkeyPatch, *stemmed: str) -> None:
    """Let the engine analyze some fields with English stems."""
    plain, english = (make_analyzer(AnalyzerConfig(stemmer=name)) for name in (None, "english"))

    def analyze(_: LocalEngine, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        assert index == "docs"
        return (english if field in stemmed else plain).tokens(texts)

    monkeypatch.setattr(LocalEngine, "analyze", analyze)


def searching(*fields: str) -> dict[str, Any]:
    return {"query": {"multi_match": {"query": "{{query}}", "fields": list(fields)}}}


def test_fields_without_stems_are_found_with_an_example(engine: LocalEngine) -> None:
    documents = inflected_documents()
    found = unstemmed_fields(engine, "docs", model_of(documents, stemmer="english").encoder, TWO_FIELDS)
    assert found.keys() == {"title", "text"}, "a keyword field has no words to reduce"
    assert {word.removesuffix("ing").removesuffix("s") for word in found["title"]} < set(ROOTS)
    assert len(set(found["title"])) == 2
    assert not unstemmed_fields(engine, "docs", model_of(documents).encoder, TWO_FIELDS), "the model has none either"


@pytest.mark.parametrize(
    ("searched", "stemmed", "found"),
    [
        (["title", "text"], ["text"], {"title"}),
        (["title", "text"], ["title", "text"], set()),
        (["title", "title.english"], ["title.english"], set()),
        (["title.english", "text"], ["title.english"], {"text"}),
        (["title", "title.english"], [], {"title"}),
    ],
)
def test_a_field_with_stems_or_with_a_searched_multi_field_of_stems_is_left_out(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, searched: list[str], stemmed: list[str], found: set[str]
) -> None:
    with_stems(monkeypatch, *stemmed)
    encoder = model_of(inflected_documents(), stemmer="english").encoder
    assert unstemmed_fields(engine, "docs", encoder, searching(*searched)).keys() == found


def test_words_that_occur_in_one_form_show_nothing(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = model_of(inflected_documents(), stemmer="finnish").encoder
    monkeypatch.setattr("reranker.rerank.stems.N_DOCUMENTS", 1)
    assert not unstemmed_fields(engine, "docs", encoder, TWO_FIELDS)


def compared(engine: float, weights: float, words: float, model: float) -> OrderComparison:
    """Return a comparison of orders with these means on 20 queries, which differ by little."""
    means = {"engine": engine, "weights": weights, "words": words, "model": model}
    changes = np.array([0.001 * (n % 3 - 1) for n in range(20)])
    tests = {
        ("words", other): {one: paired_test(words + changes, np.full(20, means[other])) for one in COMPARED}
        for other in ("engine", "weights")
    }
    return OrderComparison({order: dict.fromkeys(COMPARED, mean) for order, mean in means.items()}, tests)


@pytest.mark.parametrize(
    ("means", "is_most"),
    [
        ((0.38, 0.38, 0.412, 0.415), True),
        ((0.38, 0.41, 0.412, 0.415), False),  # the field weights give it, without stems
        ((0.38, 0.37, 0.385, 0.415), False),  # the learned part gives it
        ((0.38, 0.37, 0.3801, 0.375), False),  # less than the interval
    ],
)
def test_most_of_the_gain_is_said_to_need_only_stems_if_the_words_show_it(
    means: tuple[float, float, float, float], is_most: bool
) -> None:
    documents = inflected_documents()
    encoder = model_of(documents, lexical=BM25, stemmer="english").encoder
    fields = {"title": ("connects", "connecting")}
    text = stems_sentence(fields, compared(*means), "nDCG@10", encoder)
    assert "the analyzer of field 'title' does not reduce words to stems ('connects' and 'connecting' stay" in text
    assert f"the same hits reach nDCG@10 {means[2]:.4f}; in the engine's order {means[0]:.4f}" in text
    assert ("Most of the gain needs no model" in text) == is_most
    assert ("it is not shown that" in text) == (not is_most)
    two = stems_sentence({**fields, "text": ("a", "b")}, compared(*means), "AP", encoder)
    assert "the analyzers of the fields 'title', 'text' do not reduce" in two and "reach MAP" in two


def test_a_memory_of_queries_is_not_taken_for_stems() -> None:
    documents = {f"d{n}": {"title": "word0", "text": "word11 lumber"} for n in range(10)}
    encoder = model_of(documents, lexical=MEMORY_BM25, stemmer="english").encoder
    text = stems_sentence({"text": ("a", "b")}, compared(0.38, 0.38, 0.412, 0.415), "AP", encoder)
    assert "Most of the gain" not in text and "include a memory" in text


def test_calibration_measures_the_gain_of_stems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = inflected_documents()
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": k, **v}) + "\n" for k, v in documents.items()))
    (tmp_path / "queries.tsv").write_text("".join(f"{root}\tshop {root}ed\n" for root in ROOTS))
    (tmp_path / "qrels.tsv").write_text("".join(f"{ROOTS[n // 2]}\td{n}\t1\n" for n in range(len(documents))))
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str) -> str:
        common = ["--engine", "tantivy:./index", "--index", "docs", "--model", "model"]
        result = CliRunner().invoke(main, [command, *arguments, *common], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    model = model_of(documents, lexical=BM25, stemmer="english", scale=0.01)
    save_model(model, tmp_path / "model")
    run("index", "docs.jsonl")
    files = ["--qrels", "qrels.tsv", "--query-file", "queries.tsv", "--window", "50", "--dry-run"]
    fit = json.loads(run("calibrate", *files, "--json"))
    means = {order: values["nDCG@10"] for order, values in fit["comparison"]["means"].items()}
    assert means["words"] == pytest.approx(1.0) and means["engine"] < 0.5
    assert fit["comparison"]["differences"]["words - engine"]["nDCG@10"]["difference"] > 0.5
    assert "fields 'title', 'text'" in fit["stems"] and "Most of the gain needs no model" in fit["stems"]
    shown = " ".join(run("calibrate", *files).split())
    assert fit["stems"] in shown and "model's word matches − engine +" in shown

    def refuse(*_: object) -> None:
        raise EngineAuthError("no right to analyze", status=403)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "analyze", refuse)
        assert "it is unknown whether the analyzers of index 'docs'" in " ".join(run("calibrate", *files).split())
    encoder = replace(model.encoder, analyzer=make_analyzer(AnalyzerConfig()))
    save_model(replace(model, encoder=encoder), tmp_path / "model")
    run("index", "docs.jsonl", "--rebuild")
    assert json.loads(run("calibrate", *files, "--json"))["stems"] is None
