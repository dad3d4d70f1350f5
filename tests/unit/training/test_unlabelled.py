"""Training without labels: settings by rule, the reading that vectors choose, and documents that words cannot find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.errors import ConfigError, TrainingError
from reranker.lexical.tuning import TITLE_WEIGHT
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.rows import inner_products
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, train_unlabelled
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Said, write_documents
from tests.unit.training.test_word_encoder import N_TOPICS, N_WORDS, VIEW, WITH_VECTOR, sources


def found(model: RankingModel, documents: list[dict[str, Any]]) -> float:
    """Return the share of a topic's documents among the first ten, for queries of one word of a topic."""
    texts = [f"t{topic}w{word}" for topic in range(N_TOPICS) for word in range(N_WORDS)]
    encoded, asked = model.encoder.encode(documents), model.encode_queries(texts)
    scores = asked.vectors @ encoded.vectors.T + inner_products(asked.rows, encoded.rows)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    topics = np.array([int(text[1:].partition("w")[0]) for text in texts])
    return float(np.mean(best % N_TOPICS == topics[:, None]))


def test_vectors_find_what_words_cannot(tmp_path: Path) -> None:
    documents, said = sources(), Said()
    path = write_documents(tmp_path / "docs.jsonl", documents)
    model, report = train_unlabelled(DocumentSource(path, WITH_VECTOR), listener=Listener(said))
    assert model.word_encoder is not None and model.word_encoder.weight > 0
    words = replace(model, word_encoder=replace(model.word_encoder, weight=0.0))
    assert found(model, documents) > found(words, documents) + 0.2
    assert [cost.stage for cost in report.costs][:2] == ["reading", "word vectors"]
    assert set(report.notes) <= set(said.messages) and "no labels" in report.notes[-1]
    save_model(model, tmp_path / "model")
    again, _ = train_unlabelled(DocumentSource(path, WITH_VECTOR))
    assert load_model(tmp_path / "model").model_id == again.model_id
    assert model.training_queries is not None and len(model.training_queries.hashes) == 0


def test_settings_are_the_usual_ones_unless_stated(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "docs.jsonl", sources())
    lexical = train_unlabelled(DocumentSource(path, WITH_VECTOR))[0].encoder.lexical
    assert lexical is not None and lexical.field_weights == (TITLE_WEIGHT, 1.0)
    assert (lexical.k1, lexical.b) == (1.2, (0.75, 0.75))
    stated = replace(TextView.parse(["title^5", "text^3"]), vector="vector")
    lexical = train_unlabelled(DocumentSource(path, stated))[0].encoder.lexical
    assert lexical is not None and lexical.field_weights == (5.0, 3.0)


@pytest.mark.parametrize(
    ("endings", "stemmer"),
    [(("", "s", "ed", "ing", "ly"), "english"), (("", "en", "te", "ung", "lich"), None)],
    ids=["english", "german"],
)
def test_english_texts_are_read_as_stems(tmp_path: Path, endings: tuple[str, ...], stemmer: str | None) -> None:
    rng = seeded_rng(11)
    verbs = ["walk", "jump", "paint", "cook", "climb", "print", "plant", "point", "sort", "train", "count", "load"]
    documents = [
        {
            "id": f"d{i}",
            "title": "",
            "text": f"{verbs[i % 12]}{rng.choice(endings)}",
            "vector": rng.normal(size=8).tolist(),
        }
        for i in range(240)
    ]
    path = write_documents(tmp_path / "docs.jsonl", documents)
    model, report = train_unlabelled(DocumentSource(path, WITH_VECTOR))
    assert model.encoder.analyzer.config.stemmer == stemmer
    assert report.notes[0].startswith("words are English stems" if stemmer else "words are taken as they stand")
    stated = DocumentSource(path, WITH_VECTOR, make_analyzer(AnalyzerConfig()))
    model, report = train_unlabelled(stated)
    assert model.encoder.analyzer.config.stemmer is None and len(report.notes) == 1


def test_a_limited_number_of_dimensions_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.training.train.VECTOR_DIMS", 3)
    path = write_documents(tmp_path / "docs.jsonl", sources())
    model, _ = train_unlabelled(DocumentSource(path, WITH_VECTOR))
    field = model.encoder.vector_field
    assert field is not None and field.n_dims == 3
    assert model.manifest["vector_field"]["n_dims"] == 3


def test_documents_without_a_field_of_vectors_are_refused(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "docs.jsonl", sources())
    with pytest.raises(ConfigError, match="the documents need vectors"):
        train_unlabelled(DocumentSource(path, VIEW))


def test_the_command_needs_the_field_only(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "docs.jsonl", sources())

    def train(*options: str) -> Result:
        command = ["train", "--docs", str(path), "--model", str(tmp_path / "model"), *options]
        return CliRunner().invoke(main, command)

    result = train("--vector-field", "vector", "--json")
    printed, model = json.loads(result.stdout), load_model(tmp_path / "model")
    assert result.exit_code == 0 and printed["model_id"] == model.model_id and model.encoder.view.vector == "vector"
    assert printed["accounts"][0]["used"] == 200
    result = train("--vector-field", "vector")
    assert result.exit_code == 0 and "seconds" in result.stdout and "learning word vectors" in result.stderr
    result = train()
    assert result.exit_code == ConfigError.exit_code and "or only --vector-field" in result.output
    result = train("--vector-field", "vector", "--report", str(tmp_path / "r.html"))
    assert result.exit_code == ConfigError.exit_code and "--report needs data to learn from" in result.output
    result = train("--vector-field", "vectr")
    assert result.exit_code == TrainingError.exit_code and "nearest of their fields are vector" in result.output
