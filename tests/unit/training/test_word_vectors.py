"""Vectors of single words by the documents' text encoder, and the pull towards them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.encoders import open_encoder
from reranker.errors import InputError
from reranker.kernels.rows import embed_rows
from reranker.models.vector_field import VectorField
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.vocabulary import Vocabulary
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, train_model, train_unlabelled
from reranker.training import word_encoder as module
from reranker.training.given_vectors import field_of
from reranker.training.problem import query_set
from reranker.training.word_encoder import MAP_RIDGE, encoder_problem, mapped_prior, solved, teacher_vectors
from reranker.training.word_vectors import PriorWords, WantedWords, encoded_words
from tests.seeds import seeded_rng
from tests.unit.small_encoders import FakeEncoder, write_static
from tests.unit.training.synthetic import Said, corpus_of, write_documents
from tests.unit.training.test_word_encoder import (
    N_DIMS,
    N_TOPICS,
    WITH_VECTOR,
    collected,
    queries_of_topics,
    sources,
)

MANY_WORDS = 40


def few_documents() -> list[dict[str, Any]]:
    """Return documents whose words are rare: hardly one of them is known by its documents."""
    return sources(n_words=MANY_WORDS)


def prior_of_topics(
    words: Sequence[str], documents: list[dict[str, Any]], rng: np.random.Generator, is_useful: bool = True
) -> PriorWords:
    """Return the mean vector of a word's topic if the vectors are useful, else random ones."""
    given = np.array([document["vector"] for document in documents])
    centres = np.array([given[topic::N_TOPICS].mean(axis=0) for topic in range(N_TOPICS)])
    rows = [row for row, word in enumerate(words) if word.startswith("t")]
    topics = [int(words[row][1:].partition("w")[0]) for row in rows]
    vectors = centres[topics] if is_useful else rng.normal(size=(len(rows), N_DIMS))
    return PriorWords(np.array(rows), vectors.astype(np.float32))


def test_held_out_documents_decide_whether_a_prior_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, (texts, grades) = few_documents(), queries_of_topics()
    data = corpus_of(write_documents(tmp_path / "docs.jsonl", documents), from_judgements(grades, texts))
    given, words = collected(documents), data.tfidf.vocabulary.words
    field = field_of(given, N_DIMS, seeded_rng(5))
    useful, random = (prior_of_topics(words, documents, seeded_rng(1), is_useful) for is_useful in (True, False))
    plain = encoder_problem(field, given, data, seeded_rng(6))
    left_out = encoder_problem(field, given, data, seeded_rng(6), random)
    assert left_out.prior is None and "left out" in left_out.notes[0]
    assert left_out.U.tobytes() == plain.U.tobytes()
    found = []
    for n in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda n=n: n)
        used = encoder_problem(field, given, data, seeded_rng(6), useful)
        found.append(used.U.tobytes())
    assert used.prior is not None and "they are used" in used.notes[0]
    assert used.likeness.mean() > plain.likeness.mean()
    assert found[0] == found[1] == found[2]


def test_stems_have_the_mean_vector_of_their_words_by_an_encoder() -> None:
    vocabulary = Vocabulary(("green", "run"), np.array([3, 3]), 10)
    spellings = Vocabulary(("running", "green", "runs", "new\u2423york"), np.array([3, 2, 1, 1]), 10)
    wanted_words = WantedWords(vocabulary, make_analyzer(parse_analyzer("unicode,stem=english")), spellings)
    encoder = FakeEncoder()
    found = encoded_words(encoder, wanted_words)
    green, running, runs = encoder.encode(["green", "running", "runs"])
    assert found is not None and found.rows.tolist() == [0, 1]
    np.testing.assert_allclose(found.vectors, [green, (3 * running + runs) / 4], atol=1e-6)
    nothing = WantedWords(vocabulary, wanted_words.analyzer, Vocabulary((), np.zeros(0, np.int64), 0))
    with pytest.raises(InputError, match="no word of the documents can be given to the text encoder"):
        encoded_words(encoder, nothing)
    assert encoded_words(None, wanted_words) is None


def test_the_solution_with_a_prior_is_that_of_dense_algebra() -> None:
    rows = np.array([[1, 0, 0], [0.6, 0.8, 0]], np.float32)
    targets = np.array([[1, 2], [3, -1]], np.float32)
    texts = [module._texts(sp.csr_matrix(rows), targets, 3)]
    given = np.array([[1, 0], [0, 1], [2, 2]], np.float32)
    table = given - given.mean(axis=0)
    table /= np.sqrt(np.mean(np.sum(table**2, axis=1)))
    A, T, E0 = rows.astype(np.float64), targets.astype(np.float64), table.astype(np.float64)
    U0 = E0 * np.sum(A @ E0 * T) / (np.sum((A @ E0) ** 2) + 2 * MAP_RIDGE)
    field = VectorField(np.zeros(2, np.float32), np.eye(2, dtype=np.float32), 10.0)
    found = mapped_prior(PriorWords(np.arange(3), given), texts, 3, field)
    np.testing.assert_allclose(found, U0, atol=1e-5)
    expected = U0 + np.linalg.solve(A.T @ A + 0.7 * np.eye(3), A.T @ (T - A @ U0))
    solution = solved(texts, 0.7, found, found)
    np.testing.assert_allclose(solution, expected, atol=1e-4)
    np.testing.assert_array_equal(solution[2], found[2], "no text holds the word, which keeps its prior")
    equal = PriorWords(np.arange(3), np.ones((3, 2), np.float32))
    assert not mapped_prior(equal, texts, 3, field).any(), "vectors that are all equal say nothing"


def test_words_keep_their_directions() -> None:
    rng = seeded_rng(2)
    words, rows = rng.normal(size=(6, 3)).astype(np.float32), np.eye(6, dtype=np.float32)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0][:, :2].astype(np.float32)
    field = VectorField(np.zeros(3, np.float32), axes, 10.0)
    expected = (words - words.mean(axis=0)) @ axes
    texts = [module._texts(sp.csr_matrix(rows), 7 * expected, 6)]
    found = mapped_prior(PriorWords(np.arange(6), words), texts, 6, field)
    scale = float(np.sum(found * expected) / np.sum(expected**2))
    np.testing.assert_allclose(found, scale * expected, atol=1e-5)
    assert 5 < scale < 7, "the length is fitted, and shrunk a little"
    other = PriorWords(np.arange(6), np.ones((6, 4), np.float32))
    with pytest.raises(InputError, match="gives vectors of 4 numbers, and those of the documents have 3: name the enc"):
        mapped_prior(other, texts, 6, field)


def embedded(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the documents with vectors of a fake encoder."""
    vectors = FakeEncoder().encode([f"{one['title']} {one['text']}" for one in documents])
    return [{**one, "vector": vector.tolist()} for one, vector in zip(documents, vectors, strict=True)]


def test_training_queries_teach_with_the_vectors_of_the_encoder(tmp_path: Path) -> None:
    documents = embedded(sources())
    texts, grades = {"q": "filler1 filler2"}, {"q": {"missing": 1.0}}
    evidence = from_judgements(grades, texts)
    data = corpus_of(write_documents(tmp_path / "docs.jsonl", documents), evidence)
    given = collected(documents)
    field = field_of(given, 8, seeded_rng(5))
    problem = encoder_problem(field, given, data, seeded_rng(6))
    asked = teacher_vectors(FakeEncoder(), field, texts)
    queries = query_set(data, [evidence], None)
    taught = replace(problem, asked=asked).taught(queries, data, evidence)
    assert problem.taught(queries, data, evidence) is problem.U, "no relevant document is known"
    row = queries.rows.learned[0]
    errors = [np.linalg.norm(embed_rows(row, table)[0] - asked.vectors[0]) for table in (problem.U, taught)]
    assert errors[1] < errors[0] - 0.05
    with pytest.raises(InputError, match="gives vectors of 5 numbers, and those of the documents have 8"):
        teacher_vectors(FakeEncoder(5), field, texts)


def test_trainings_call_the_encoder_and_their_models_do_not(tmp_path: Path) -> None:
    documents, (texts, grades) = embedded(few_documents()), queries_of_topics()
    path, said = write_documents(tmp_path / "docs.jsonl", documents), Said()
    encoder = FakeEncoder()
    source = DocumentSource(path, WITH_VECTOR, encoder=encoder)
    config = TrainConfig(memory="off", dim=4, epochs=1)
    train_model(source, from_judgements(grades, texts), config, listener=Listener(said))
    assert "computing the vectors of 120 training queries" in said.messages
    model, report = train_unlabelled(source, config)
    assert any("they are used" in note for note in report.notes), "single words tell the sum of a document's words"
    n_texts = encoder.n_texts
    assert model.encode_queries(["t1w1 t2w2"]).vectors.any() and encoder.n_texts == n_texts


def test_the_command_trains_with_an_encoder(tmp_path: Path) -> None:
    words = ["red green", "red blue", "green blue", "red", "green", "blue"]
    documents = [{"id": f"d{n}", "title": words[n % 6], "text": words[n % 5]} for n in range(60)]
    folder = write_static(tmp_path / "static")
    vectors = open_encoder(folder).encode([f"{one['title']} {one['text']}" for one in documents])
    with_vectors = [{**one, "vector": row.tolist()} for one, row in zip(documents, vectors, strict=True)]
    docs = write_documents(tmp_path / "docs.jsonl", with_vectors)
    options = ["train", "--docs", str(docs), "--encoder", str(folder), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2 and "--encoder needs vectors of documents" in result.output
    result = CliRunner().invoke(main, [*options, "--vector-field", "vector"])
    assert result.exit_code == 0 and "the encoder's word vectors: 3 of 3 words" in result.output, result.output
    result = CliRunner().invoke(main, [*options, "--vector-field", "vector", "--encoder", str(tmp_path / "none")])
    assert result.exit_code == 3 and "is no folder" in result.output
