"""Word vectors: the exact solution, what training queries teach, and trainings with vectors of documents."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError, TrainingError
from reranker.models.model_folder import load_model, save_model
from reranker.records import Document
from reranker.text.rows import inner_products
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, train_model, train_unlabelled
from reranker.training import word_encoder as module
from reranker.training.given_vectors import MIN_VECTORS, GivenVectors, VectorCollector, field_of, group_notes
from reranker.training.problem import query_set
from reranker.training.word_encoder import RIDGES, encoder_problem, solved
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Said, corpus_of, nothing_learned, write_documents

VIEW = TextView.parse(["title", "text"])
WITH_VECTOR = TextView(VIEW.fields, vector="vector")
N_TOPICS, N_WORDS, N_DIMS = 20, 6, 12


def sources(n: int = 200, seed: int = 3, n_words: int = N_WORDS) -> list[dict[str, Any]]:
    """Return documents of topics: each has some of its topic's words, and a vector near its topic's.

    The words of a topic have nothing in common but that: `t3w0` and `t3w5` are two words of topic 3.
    """
    rng = seeded_rng(seed)
    centres = rng.normal(size=(N_TOPICS, N_DIMS))
    documents: list[dict[str, Any]] = []
    for number in range(n):
        topic = number % N_TOPICS
        words = [f"t{topic}w{int(word)}" for word in rng.integers(0, n_words, 3)]
        fillers = [f"filler{int(word)}" for word in rng.integers(0, 40, 8)]
        vector = centres[topic] + rng.normal(scale=0.2, size=N_DIMS)
        document = {"id": f"d{number}", "title": words[0], "text": " ".join([*words[1:], *fillers])}
        documents.append({**document, "vector": [float(value) for value in vector]})
    return documents


def collected(documents: list[dict[str, Any]]) -> GivenVectors:
    collector = VectorCollector(WITH_VECTOR)
    collector.add([Document(one["id"], {k: v for k, v in one.items() if k != "id"}) for one in documents])
    return collector.collected(["title", "vector"])


def queries_of_topics() -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Return queries of one word of a topic, whose relevant documents are all of the topic."""
    texts = {f"q{topic}w{word}": f"t{topic}w{word}" for topic in range(N_TOPICS) for word in range(N_WORDS)}
    grades = {
        query: {f"d{number}": 1.0 for number in range(int(query[1:].partition("w")[0]), 200, N_TOPICS)}
        for query in texts
    }
    return texts, grades


def test_the_solution_is_that_of_the_normal_equations() -> None:
    rng = seeded_rng(1)
    rows = [sp.csr_matrix(sp.random(n, 15, 0.3, random_state=1, dtype=np.float32)) for n in (40, 25)]
    targets = [rng.normal(size=(part.shape[0], 4)).astype(np.float32) for part in rows]
    texts = [module._texts(part, target, 15) for part, target in zip(rows, targets, strict=True)]
    A, T = sp.vstack(rows).toarray().astype(np.float64), np.vstack(targets).astype(np.float64)
    expected = np.linalg.solve(A.T @ A + 0.7 * np.eye(15), A.T @ T)
    once = solved(texts, 0.7, np.zeros((15, 4), np.float32))
    np.testing.assert_allclose(once, expected, atol=2e-3)
    np.testing.assert_allclose(solved(texts, 0.7, once), expected, atol=1e-5)


def test_a_word_that_no_text_holds_has_the_vector_zero() -> None:
    rows = sp.csr_matrix(np.array([[1, 0, 0], [1, 0, 0.5]], np.float32))
    found = solved([module._texts(rows, np.ones((2, 2), np.float32), 3)], 1.0, np.zeros((3, 2), np.float32))
    assert not found[1].any() and found[0].all() and found[2].all()


def test_the_same_bytes_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sp.csr_matrix(sp.random(3_000, 400, 0.3, random_state=2, dtype=np.float32))
    texts = [module._texts(rows, seeded_rng(2).normal(size=(3_000, 5)).astype(np.float32), 400)]
    found = []
    for n in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda n=n: n)
        found.append(solved(texts, 3.0, np.zeros((400, 5), np.float32)).tobytes())
    assert found[0] == found[1] == found[2]


def test_words_get_the_direction_of_their_topic_and_queries_teach_others(tmp_path: Path) -> None:
    documents = sources()
    texts, grades = queries_of_topics()
    grades["other"] = {"d0": 1.0, "d20": 1.0}
    texts["other"] = "filler1"
    evidence = from_judgements(grades, texts)
    data = corpus_of(write_documents(tmp_path / "docs.jsonl", documents), evidence)
    given = collected(documents)
    field = field_of(given, N_DIMS, seeded_rng(5))
    problem = encoder_problem(field, given, data, seeded_rng(6))
    assert problem.ridge in RIDGES
    word = {name: row for row, name in enumerate(data.tfidf.vocabulary.words)}
    topics = np.stack([problem.vectors[topic::N_TOPICS].mean(axis=0) for topic in range(N_TOPICS)])
    named = [(name, int(name[1:].partition("w")[0])) for name in word if name.startswith("t")]
    U = problem.U[[word[name] for name, _ in named]]
    nearest = np.argmax(U @ (topics / np.linalg.norm(topics, axis=1, keepdims=True)).T, axis=1)
    assert np.mean(nearest == [topic for _, topic in named]) > 0.95
    queries = query_set(data, [evidence], None)
    taught = problem.taught(queries, data, evidence)
    before, after = (table[word["filler1"]] @ topics[0] for table in (problem.U, taught))
    assert after > before + 0.1
    nobody = from_judgements({"q": {"missing": 1.0}}, {"q": "filler1"})
    assert problem.taught(queries, data, nobody) is problem.U


def test_documents_without_a_vector_teach_nothing(tmp_path: Path) -> None:
    documents = sources()
    del documents[20]["vector"]
    both = from_judgements({"q": {"d0": 1.0, "d20": 1.0}}, {"q": "filler1"})
    one = from_judgements({"q": {"d0": 1.0}}, {"q": "filler1"})
    data = corpus_of(write_documents(tmp_path / "docs.jsonl", documents), both)
    given = collected(documents)
    problem = encoder_problem(field_of(given, N_DIMS, seeded_rng(5)), given, data, seeded_rng(6))
    queries = query_set(data, [both], None)
    first, second = (problem.taught(queries, data, evidence) for evidence in (both, one))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, problem.U)


def test_a_training_with_vectors_finds_what_words_cannot(tmp_path: Path) -> None:
    documents, (texts, grades) = sources(), queries_of_topics()
    for one in documents[::7]:
        del one["vector"]
    path, said = write_documents(tmp_path / "docs.jsonl", documents), Said()
    evidence = from_judgements(grades, texts)
    config = TrainConfig(memory="off", dim=4, epochs=1)
    plain, _ = train_model(DocumentSource(path, VIEW), evidence, config)
    model, report = train_model(DocumentSource(path, WITH_VECTOR), evidence, config, listener=Listener(said))
    assert plain.word_encoder is None
    assert report.form is not None and report.form.form.vectors and "given vectors" in report.form.sentence
    assert report.form.weights is not None and model.word_encoder is not None and model.encoder.vector_field is not None
    assert model.word_encoder.weight == report.form.weights.given > 0
    assert model.encoder.vector_field.share == pytest.approx(1 - len(documents[::7]) / 200)
    assert "learning word vectors" in said.messages
    save_model(model, tmp_path / "model")
    again, _ = train_model(DocumentSource(path, WITH_VECTOR), evidence, config)
    assert load_model(tmp_path / "model").model_id == again.model_id

    def found(of: Any) -> float:
        """Return the mean share of relevant documents among the first ten, for queries of topics."""
        encoded, ids = of.encoder.encode([one for one in documents]), [one["id"] for one in documents]
        asked = of.encode_queries(list(texts.values()))
        scores = asked.vectors @ encoded.vectors.T + inner_products(asked.rows, encoded.rows)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        return float(np.mean([[ids[d] in grades[q] for d in row] for q, row in zip(texts, best, strict=True)]))

    assert found(model) > found(plain) + 0.2


@pytest.mark.parametrize("has_labels", [False, True])
def test_training_goes_on_from_a_model_with_given_vectors(tmp_path: Path, has_labels: bool) -> None:
    documents, (texts, grades) = sources(), queries_of_topics()
    path, evidence = write_documents(tmp_path / "docs.jsonl", documents), from_judgements(grades, texts)
    source = DocumentSource(path, WITH_VECTOR)
    config = TrainConfig(memory="off", dim=4, epochs=1)
    if has_labels:
        base, _ = train_model(source, evidence, config)
    else:
        base, _ = train_unlabelled(source, config)
    assert base.word_encoder is not None and base.encoder.vector_field is not None
    plain = TrainConfig(memory="off", epochs=1)
    for one in documents:
        one["vector"] = [2 * value + 1 for value in one["vector"]]
    changed = DocumentSource(write_documents(tmp_path / "changed.jsonl", documents))
    for query_side_only in (True, False):
        settings = replace(plain, query_side_only=query_side_only)
        model, _ = train_model(changed, evidence, settings, base=base)
        assert model.word_encoder is not None and model.encoder.vector_field is not None
        np.testing.assert_array_equal(model.encoder.vector_field.mean, base.encoder.vector_field.mean)
        assert (model.encoder_id == base.encoder_id) or not query_side_only
        assert not np.array_equal(model.word_encoder.U, base.word_encoder.U)
    for one in documents:
        one["vector"] = one["vector"][:5]
    other = DocumentSource(write_documents(tmp_path / "other.jsonl", documents))
    with pytest.raises(InputError, match=r"vectors of 5 numbers, and the model to start from was trained with 12"):
        train_model(other, evidence, plain, base=base)


def test_a_lexical_score_has_no_query_side_to_train(tmp_path: Path) -> None:
    texts, grades = queries_of_topics()
    path, evidence = write_documents(tmp_path / "docs.jsonl", sources()), from_judgements(grades, texts)
    with nothing_learned():
        base, _ = train_model(DocumentSource(path, VIEW), evidence, TrainConfig())
    with pytest.raises(ConfigError, match="lexical score, which has no query side to train"):
        train_model(DocumentSource(path), evidence, TrainConfig(query_side_only=True), base=base)


def test_vectors_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    documents = sources()
    rng = seeded_rng(9)
    for one in documents:
        one["vector"] = [float(value) for value in rng.normal(size=N_DIMS)]
    path = write_documents(tmp_path / "docs.jsonl", documents)
    config = TrainConfig(memory="off", dim=4, epochs=1)
    words_of_documents = {f"q{n}": f"{one['title']} {one['text']}" for n, one in enumerate(documents)}
    own = {f"q{n}": {one["id"]: 1.0} for n, one in enumerate(documents)}
    model, report = train_model(DocumentSource(path, WITH_VECTOR), from_judgements(own, words_of_documents), config)
    assert report.form is not None and not report.form.form.vectors
    assert model.word_encoder is None and not model.encoder.view.vector
    assert "the given vectors" in report.form.sentence and "do not pay" in report.form.sentence


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d[3].update(vector=[1.0, 2.0]), InputError, r"document 'd3' has a vector of 2 numbers in 'vector'"),
        (lambda d: d[3].update(vector="none"), InputError, r"document 'd3': the field 'vector' is 'none': a vector is"),
        (
            lambda d: [one.pop("vector") for one in d[1:]],
            TrainingError,
            r"1 of 200 documents have .*at least 10",
        ),
        (lambda d: [one.update(vector=[1.0, 2.0]) for one in d], TrainingError, "all vectors of documents are equal"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(
    tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    documents = sources()
    change(documents)
    path = write_documents(tmp_path / "docs.jsonl", documents)
    texts, grades = queries_of_topics()
    with pytest.raises(error, match=message):
        train_model(DocumentSource(path, WITH_VECTOR), from_judgements(grades, texts))


def test_a_field_that_no_document_has_is_named_with_the_nearest() -> None:
    collector = VectorCollector(TextView(VIEW.fields, vector="vectr"))
    collector.add([Document("a", {"vector": [1.0]})])
    with pytest.raises(TrainingError, match=r"'vectr'.*the nearest of their fields are vector.*--vector-field"):
        collector.collected(["title", "vector"])
    assert MIN_VECTORS > 1


def test_vectors_of_two_encoders_are_noticed() -> None:
    rng = seeded_rng(4)
    one, lengths = rng.normal(size=2_000), rng.normal(1, 0.01, 2_000)
    assert group_notes(one, lengths) == []
    two = np.concatenate([rng.normal(-4, 0.5, 1_500), rng.normal(4, 0.5, 500)])
    (note,) = group_notes(two, lengths)
    assert "two groups, of 1,500 and 500 documents" in note
    (note,) = group_notes(one, np.concatenate([lengths[:1_000], 10 * lengths[1_000:]]))
    assert "the lengths of the vectors differ widely" in note


def test_fewer_axes_keep_the_largest_differences() -> None:
    rng = seeded_rng(8)
    vectors = (rng.normal(size=(300, 3)) * [0.1, 5.0, 1.0] + [1, 2, 3]).astype(np.float32)
    given = GivenVectors(np.arange(300), vectors, 400)
    field = field_of(given, 2, seeded_rng(1))
    np.testing.assert_allclose(np.abs(field.axes), [[0, 0], [1, 0], [0, 1]], atol=0.05)
    assert (field.axes[[1, 2], [0, 1]] > 0).all(), "the sign is fixed"
    assert field.share == 0.75
    found = given.projected(field)
    assert found.shape == (400, 2) and not found[300:].any()
    assert np.linalg.norm(found, axis=1).max() <= field.longest
