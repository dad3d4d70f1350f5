"""Word vectors from files: formats, matching by the analyzer, hostile files, and the pull towards them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from reranker.cli.common import EXIT_REJECTS
from reranker.cli.main import main
from reranker.encoders import open_encoder
from reranker.errors import InputError
from reranker.formats import RejectLog
from reranker.kernels.rows import embed_rows
from reranker.models.vector_field import VectorField
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.vocabulary import Vocabulary
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, train_model, train_unlabelled
from reranker.training import word_encoder as module
from reranker.training.given_vectors import field_of
from reranker.training.problem import query_set
from reranker.training.word_encoder import MAP_RIDGE, encoder_problem, mapped_prior, solved, teacher_vectors
from reranker.training.word_vectors import EncodedWords, PriorWords, WantedWords, WordVectorFile
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
NUMBERS = {"red": [1, 2, 3], "green": [4, 5, 6.5], "blue": [-1, 0, 1e-3]}


def wanted(words: Sequence[str], analyzer: str = "unicode") -> WantedWords:
    vocabulary = Vocabulary(tuple(words), np.ones(len(words), np.int64), 10)
    return WantedWords(vocabulary, make_analyzer(parse_analyzer(analyzer)), vocabulary)


def lines_of(numbers: dict[str, Any], end: str = "\n") -> str:
    return "".join(f"{word} {' '.join(map(str, row))}{end}" for word, row in numbers.items())


def read(path: Path, content: str | bytes, words: Sequence[str] = ("green", "red"), **more: Any) -> PriorWords:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return WordVectorFile(path).vectors(wanted(words, **more), None)


@pytest.mark.parametrize(
    "content",
    [
        lines_of(NUMBERS),
        "3 3\n" + lines_of(NUMBERS),
        "3 3\n" + lines_of(NUMBERS, " \n"),
        lines_of(NUMBERS, "\r\n"),
        lines_of(NUMBERS).replace(" ", "\t"),
        "\ufeff" + lines_of(NUMBERS),
        gzip.compress(b"3 3\n" + lines_of(NUMBERS).encode(), mtime=0),
    ],
    ids=["GloVe", "word2vec", "fastText", "CRLF", "tabs", "byte order mark", "gzip"],
)
def test_every_format_is_read(tmp_path: Path, content: str | bytes) -> None:
    found = read(tmp_path / "words.vec", content)
    assert found.rows.tolist() == [0, 1]
    np.testing.assert_array_equal(found.vectors, np.array([[4, 5, 6.5], [1, 2, 3]], np.float32))


def test_words_are_matched_by_the_analyzer(tmp_path: Path) -> None:
    content = lines_of({"Running": [1, 0], "runs": [3, 0], "new york": [9, 9], "at . .": [7, 7], "x": [0, 0]})
    found = read(tmp_path / "words.txt", content, ["at", "run", "x", "york"], analyzer="unicode,stem=english")
    assert found.rows.tolist() == [0, 1], "'new york' is two words, and a vector of zeros is none"
    np.testing.assert_array_equal(found.vectors, np.array([[7, 7], [2, 0]], np.float32))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"blue 1 2", r"line 3 \(byte \d+\): a word with 2 numbers: the lines before it have 3; correct the line"),
        (b"blue 1 2 3 4", r"line 3 .*a word with 4 numbers: the lines before it have 3"),
        (b"blue 1 nan 3", r"line 3 .*'nan' is no finite number that fits float32: correct the line"),
        (b"blue 1 2 1e39", r"line 3 .*'1e39' is no finite number"),
        (b"blue 1 two 3", r"line 3 .*'two' is no finite number"),
        (b"bl\xffe 1 2 3", r"line 3 .*byte 2 is 0xff, which is not UTF-8"),
    ],
)
def test_a_bad_line_is_refused_or_counted(tmp_path: Path, line: bytes, reason: str) -> None:
    path, words = tmp_path / "words.txt", wanted(["red", "green", "blue"])
    path.write_bytes(b"red 1 2 3\ngreen 4 5 6\n" + line + b"\n")
    with pytest.raises(InputError, match=reason):
        WordVectorFile(path).vectors(words, None)
    rejects = RejectLog()
    found = WordVectorFile(path).vectors(words, rejects)
    assert found.rows.tolist() == [0, 1] and rejects.count == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("red\n", "line 1: word vectors of 0 numbers: give 1 to 16,384 numbers"),
        ("3 99999999999999999999\n", "line 1: word vectors of 999,999,999,999,999,999 numbers"),
        ("4 3\n" + lines_of(NUMBERS), "has 3 words, and its first line announces 4: it is cut short"),
        ("rouge 1 2\n", r"no word of .*such as 'rouge', theirs green, red\): give word vectors of the documents' lang"),
        (gzip.compress(lines_of(NUMBERS).encode(), mtime=0)[:-12], "the gzip stream of .* is damaged or cut short"),
        (b"\x00\x01\x02\xff\n", "line 1: word vectors of 0 numbers"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str | bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path / "words.txt", content)
    with pytest.raises(InputError, match="does not exist"):
        WordVectorFile(tmp_path / "missing").vectors(wanted(["red"]), None)


def test_the_solution_with_a_prior_is_that_of_dense_algebra() -> None:
    rows = np.array([[1, 0, 0], [0.6, 0.8, 0]], np.float32)
    targets = np.array([[1, 2], [3, -1]], np.float32)
    texts = [module._texts(sp.csr_matrix(rows), targets, 3)]
    given = np.array([[1, 0], [0, 1], [2, 2]], np.float32)
    table = given - given.mean(axis=0)
    table /= np.sqrt(np.mean(np.sum(table**2, axis=1)))
    A, T, E0 = rows.astype(np.float64), targets.astype(np.float64), table.astype(np.float64)
    U0 = E0 @ np.linalg.solve(E0.T @ A.T @ A @ E0 + MAP_RIDGE * np.eye(2), E0.T @ A.T @ T)
    field = VectorField(np.zeros(2, np.float32), np.eye(2, dtype=np.float32), 10.0)
    found = mapped_prior(PriorWords(np.arange(3), given), texts, 3, field)
    np.testing.assert_allclose(found, U0, atol=1e-5)
    expected = U0 + np.linalg.solve(A.T @ A + 0.7 * np.eye(3), A.T @ (T - A @ U0))
    solution = solved(texts, 0.7, found, found)
    np.testing.assert_allclose(solution, expected, atol=1e-4)
    np.testing.assert_array_equal(solution[2], found[2], "no text holds the word, which keeps its prior")
    equal = PriorWords(np.arange(3), np.ones((3, 2), np.float32))
    assert not mapped_prior(equal, texts, 3, field).any(), "vectors that are all equal say nothing"


def few_documents() -> list[dict[str, Any]]:
    """Return documents whose words are rare: hardly one of them is known by its documents."""
    return sources(n_words=MANY_WORDS)


def prior_of_topics(words: Sequence[str], rng: np.random.Generator, is_useful: bool = True) -> PriorWords:
    """Return vectors of another space, by the topics of words if they are useful, else at random."""
    centres = rng.normal(size=(N_TOPICS, 2 * N_DIMS))
    rows = [row for row, word in enumerate(words) if word.startswith("t")]
    topics = [int(words[row][1:].partition("w")[0]) for row in rows]
    vectors = centres[topics] if is_useful else rng.normal(size=(len(rows), 2 * N_DIMS))
    return PriorWords(np.array(rows), vectors.astype(np.float32))


def test_held_out_documents_decide_whether_a_prior_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, (texts, grades) = few_documents(), queries_of_topics()
    data = corpus_of(write_documents(tmp_path / "docs.jsonl", documents), from_judgements(grades, texts))
    given, words = collected(documents), data.tfidf.vocabulary.words
    field = field_of(given, N_DIMS, seeded_rng(5))
    useful, random = (prior_of_topics(words, seeded_rng(1), is_useful) for is_useful in (True, False))
    plain = encoder_problem(field, given, data, seeded_rng(6))
    left_out = encoder_problem(field, given, data, seeded_rng(6), random)
    assert left_out.prior is None and "left out" in left_out.notes[0]
    assert left_out.U.tobytes() == plain.U.tobytes()
    found = []
    for n in (1, 2, 7):
        monkeypatch.setattr(module, "n_cores", lambda n=n: n)
        used = encoder_problem(field, given, data, seeded_rng(6), useful)
        found.append(used.U.tobytes())
    assert used.prior is not None and "they are used" in used.notes[0]
    assert used.likeness.mean() > plain.likeness.mean()
    assert found[0] == found[1] == found[2]


def test_trainings_read_the_file_and_report_its_lines(tmp_path: Path) -> None:
    documents, (texts, grades) = few_documents(), queries_of_topics()
    words = [f"t{topic}w{word}" for topic in range(N_TOPICS) for word in range(MANY_WORDS)]
    prior = prior_of_topics(words, seeded_rng(1))
    content = lines_of(dict(zip(words, prior.vectors.tolist(), strict=True)))
    (tmp_path / "words.txt").write_text(content + "bad 1\n")
    path = write_documents(tmp_path / "docs.jsonl", documents)
    source = DocumentSource(path, WITH_VECTOR, word_source=WordVectorFile(tmp_path / "words.txt"))
    config = TrainConfig(memory="off", dim=4, epochs=1)
    for unlabelled in (False, True):
        said, rejects = Said(), RejectLog()
        listener = Listener(said, rejects=rejects)
        if unlabelled:
            model, report = train_unlabelled(source, config, listener=listener)
            assert any("they are used" in note for note in report.notes)
        else:
            train_model(source, from_judgements(grades, texts), config, listener=listener)
        assert sum("words have one; they are used" in x for x in said.messages) == 1, said.messages
        assert rejects.count == 1, "the file is read once"
    other, _ = train_unlabelled(replace(source, word_source=None), config)
    assert other.word_encoder is not None and model.word_encoder is not None
    assert not np.array_equal(other.word_encoder.U, model.word_encoder.U)


def test_the_command_reads_word_vectors(tmp_path: Path) -> None:
    docs = write_documents(tmp_path / "docs.jsonl", sources())
    (tmp_path / "words.txt").write_text("t1w1 1 2\nt1w2 2 1\nt1w3 1\n")
    options = [
        "train",
        "--docs",
        str(docs),
        "--word-vectors",
        str(tmp_path / "words.txt"),
        "--model",
        str(tmp_path / "m"),
    ]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2 and "--vector-field" in result.output
    result = CliRunner().invoke(main, [*options, "--vector-field", "vector"])
    assert "given word vectors: 2 of" in result.output and result.exit_code == EXIT_REJECTS, result.output


def test_stems_have_the_mean_vector_of_their_words_by_an_encoder() -> None:
    vocabulary = Vocabulary(("green", "run"), np.array([3, 3]), 10)
    spellings = Vocabulary(("running", "green", "runs", "new\u2423york"), np.array([3, 2, 1, 1]), 10)
    wanted_words = WantedWords(vocabulary, make_analyzer(parse_analyzer("unicode,stem=english")), spellings)
    encoder = FakeEncoder()
    found = EncodedWords(encoder).vectors(wanted_words, None)
    green, running, runs = encoder.encode(["green", "running", "runs"])
    assert found.rows.tolist() == [0, 1] and found.is_same_space
    np.testing.assert_allclose(found.vectors, [green, (3 * running + runs) / 4], atol=1e-6)
    nothing = WantedWords(vocabulary, wanted_words.analyzer, Vocabulary((), np.zeros(0, np.int64), 0))
    with pytest.raises(InputError, match="no word of the documents can be given to the text encoder"):
        EncodedWords(encoder).vectors(nothing, None)


def test_words_of_the_same_space_keep_their_directions() -> None:
    rng = seeded_rng(2)
    words, rows = rng.normal(size=(6, 3)).astype(np.float32), np.eye(6, dtype=np.float32)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0][:, :2].astype(np.float32)
    field = VectorField(np.zeros(3, np.float32), axes, 10.0)
    expected = (words - words.mean(axis=0)) @ axes
    texts = [module._texts(sp.csr_matrix(rows), 7 * expected, 6)]
    found = mapped_prior(PriorWords(np.arange(6), words, is_same_space=True), texts, 6, field)
    scale = float(np.sum(found * expected) / np.sum(expected**2))
    np.testing.assert_allclose(found, scale * expected, atol=1e-5)
    assert 5 < scale < 7, "the length is fitted, and shrunk a little"
    other = PriorWords(np.arange(6), np.ones((6, 4), np.float32), is_same_space=True)
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
    queries = query_set(data, [evidence], make_analyzer(parse_analyzer("unicode")), None)
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
    assert result.exit_code == 0 and "given word vectors: 3 of 3 words" in result.output, result.output
    result = CliRunner().invoke(main, [*options, "--vector-field", "vector", "--encoder", str(tmp_path / "none")])
    assert result.exit_code == 3 and "is no folder" in result.output
