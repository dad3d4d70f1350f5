"""Models on disk: what comes back, ids, byte-identical files, parity with the safetensors library."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from reranker.errors import ArtifactError, ConfigError, InputError, RerankerError, ShapeMismatch
from reranker.kernels.packing import QUANTISATIONS
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.models.manifest import describe_model, manifest_bytes, sealed
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import Encoder, RankingModel, tensors_of
from reranker.models.repeated import RepeatedQueries
from reranker.models.tensor_file import chunks_of, digest_of
from reranker.models.training_queries import TrainingQueries
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import count_rows, field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary
from tests.unit.small_models import (
    BM25,
    DOCUMENTS,
    IDS,
    MEMORY_BM25,
    documents_with_vectors,
    small_encoder,
    small_memory,
    small_model,
    small_table,
    small_vocabulary,
    with_given_vectors,
)

TFIDF = LexicalSettings("tfidf", (3.0, 0.5), (0.0, 1.0), factor=2.0)
WORD_WEIGHTS = np.random.default_rng(0).uniform(0.5, 2.0, 20).astype(np.float32)
TRAINING_QUERIES = TrainingQueries.of("0123456789abcdef" * 2, ["Ash  tree", "fire"], ["d1"])
REPEATED = RepeatedQueries.of("0123456789abcdef" * 2, {"ash tree": {"d1": 1.5, "d2": -0.5}})
QUERIES = ["ash tree", "fire wood", "P-4711x pump", "", "the"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tied_model() -> RankingModel:
    encoder = small_encoder()
    return small_model(encoder=encoder, U=encoder.V)


def two_vocabulary_model() -> RankingModel:
    words = ("esche", "holz", "wasser", "\ud800", "zeile\nmit umbruch")
    return small_model(query_vocabulary=Vocabulary(words, np.array([5, 4, 3, 2, 1]), 9), U=small_table(5), identity=0.0)


MODELS = {
    "plain": small_model,
    "tied": tied_model,
    "two vocabularies": two_vocabulary_model,
    "restricted": lambda: small_model(encoder=small_encoder(n_rows=7), U=small_table(9)),
    "lexical": lambda: small_model(encoder=small_encoder(n_rows=0, n_dims=0), U=small_table(0, 0)),
    "no words": lambda: small_model(
        encoder=replace(small_encoder(n_rows=0), document_vocabulary=Vocabulary((), np.zeros(0, np.int64), 0)),
        U=small_table(0),
    ),
    "query view": lambda: small_model(query_view=TextView.parse(["title"])),
    "int8": lambda: small_model(encoder=small_encoder("int8"), identity=2.5),
    "bm25": lambda: small_model(encoder=small_encoder(lexical=BM25)),
    "memory": lambda: small_model(encoder=small_encoder(lexical=MEMORY_BM25, memory=small_memory())),
    "weighted tfidf": lambda: small_model(
        encoder=small_encoder(lexical=TFIDF), query_view=TextView.parse(["text", "title"])
    ),
    "word weights": lambda: small_model(encoder=small_encoder(lexical=BM25), word_weights=WORD_WEIGHTS),
    "training queries": lambda: small_model(training_queries=TRAINING_QUERIES),
    "training queries, bm25": lambda: small_model(
        encoder=small_encoder(lexical=BM25), word_weights=WORD_WEIGHTS, training_queries=TRAINING_QUERIES
    ),
    "given vectors": lambda: with_given_vectors(small_model()),
    "repeated queries": lambda: small_model(repeated=REPEATED),
    "given vectors, tied": lambda: with_given_vectors(tied_model()),
    "given vectors, two vocabularies": lambda: with_given_vectors(two_vocabulary_model()),
    "given vectors, memory": lambda: with_given_vectors(
        small_model(encoder=small_encoder("int8", lexical=MEMORY_BM25, memory=small_memory()))
    ),
    "int8, bm25": lambda: small_model(encoder=small_encoder("int8", lexical=BM25)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_a_loaded_model_is_the_saved_one(make: Any, tmp_path: Path) -> None:
    model = make()
    model_id = save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.model_id == model.model_id == model_id
    assert loaded.encoder_id == model.encoder_id
    assert loaded.manifest == model.manifest == describe_model(tmp_path / "m")
    assert loaded.scorer.is_tied == model.scorer.is_tied
    version = 3 if model.encoder.lexical else 1
    version = 5 if model.word_weights is not None else 4 if model.encoder.memory else version
    version = 6 if model.training_queries is not None else version
    version = 7 if model.word_encoder is not None else version
    version = 11 if model.repeated is not None else version
    assert loaded.manifest["format_version"] == version
    assert loaded.encoder.lexical == model.encoder.lexical
    assert loaded.has_shared_vocabulary == model.has_shared_vocabulary
    assert loaded.query_vocabulary.words == model.query_vocabulary.words
    for name, array in tensors_of(model).items():
        np.testing.assert_array_equal(tensors_of(loaded)[name], array)
    for encode in ("encode_queries", "encode_query_documents"):
        inputs: Any = QUERIES if encode == "encode_queries" else DOCUMENTS
        old, new = getattr(model, encode)(inputs), getattr(loaded, encode)(inputs)
        np.testing.assert_array_equal(new.vectors, old.vectors)
        np.testing.assert_array_equal(new.rows.data, old.rows.data)
        np.testing.assert_array_equal(new.rows.indices, old.rows.indices)
    documents = documents_with_vectors()
    old_documents, new_documents = model.encoder.encode(documents, IDS), loaded.encoder.encode(documents, IDS)
    np.testing.assert_array_equal(new_documents.vectors, old_documents.vectors)
    np.testing.assert_array_equal(new_documents.rows.data, old_documents.rows.data)
    assert new_documents.source_hashes == old_documents.source_hashes
    model_id = save_model(loaded, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "m")


def test_equal_models_give_equal_bytes_and_no_time_or_path(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path / "one")
    save_model(small_model(), tmp_path / "other" / "deep")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "other" / "deep")
    assert sorted(files_of(tmp_path / "one")) == ["manifest.json", next(iter(small_model().manifest["files"]))]


def test_u_and_v_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path)
    loaded = load_model(tmp_path)
    for array in (loaded.U, loaded.encoder.V):
        assert not array.flags.writeable
        assert not array.flags.owndata


@pytest.mark.parametrize("form", ["cubic", "cubic_separate", "unit"])
def test_a_model_of_another_form_says_which_version_reads_it(form: str, tmp_path: Path) -> None:
    """Version 0.1 wrote such folders: the manifest of a linear model, the form, and format version 2."""
    save_model(small_model(), tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    del content["model_id"]
    content |= {"document_form": form, "format_version": 2}
    content["model_id"] = hashlib.sha256(manifest_bytes(content)).hexdigest()
    (tmp_path / "manifest.json").write_bytes(manifest_bytes(content))
    assert describe_model(tmp_path)["document_form"] == form
    with pytest.raises(ArtifactError, match=f"form is '{form}', and this version reads linear models only") as caught:
        load_model(tmp_path)
    assert "use version 0.1 of the program, which reads it, or train again" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_model_that_names_the_text_encoder_of_its_vectors_is_read(tmp_path: Path) -> None:
    """Earlier versions kept such a name for people."""
    model = with_given_vectors(small_model())
    save_model(model, tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    content["vector_field"]["text_encoder"] = "an encoder"
    (tmp_path / "manifest.json").write_bytes(manifest_bytes(sealed(content)))
    assert load_model(tmp_path).encoder_id == model.encoder_id


def test_a_new_u_changes_the_model_and_leaves_the_encoder() -> None:
    one, other = small_model(seed=1), small_model(seed=2)
    assert one.model_id != other.model_id
    assert one.encoder_id == other.encoder_id
    np.testing.assert_array_equal(one.encoder.encode(DOCUMENTS).vectors, other.encoder.encode(DOCUMENTS).vectors)
    assert not np.array_equal(one.encode_queries(QUERIES).vectors, other.encode_queries(QUERIES).vectors)


@pytest.mark.parametrize(
    "change",
    [
        {"U": small_table(20, offset=9)},
        {"identity": 2.0},
        {"query_view": TextView.parse(["title"])},
        {"training": {"seed": 2}},
        {"metrics": {"MAP": 0.6}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_query_side_changes_the_model_id_alone(change: dict[str, Any]) -> None:
    changed = small_model(**change)
    assert changed.model_id != small_model().model_id
    assert changed.encoder_id == small_model().encoder_id


def test_queries_are_unit_rows_and_documents_are_read_as_one_text() -> None:
    model = small_model()
    queries = model.encode_queries(QUERIES)
    assert queries.has_text.tolist() == [True, True, True, False, True]
    assert len(queries.vectors) == 5
    for rows in (queries.rows, model.encode_query_documents(DOCUMENTS).rows):
        lengths = np.sqrt(np.add.reduceat(np.append(rows.data, 0) ** 2, rows.indptr[:-1]))
        filled = np.diff(rows.indptr) > 0
        np.testing.assert_allclose(lengths[filled], 1, rtol=1e-6)
    as_text = model.encode_queries([f"{one['title']} {one['text']}" for one in DOCUMENTS]).rows
    as_documents = model.encode_query_documents(DOCUMENTS).rows
    np.testing.assert_array_equal(as_documents.indices, as_text.indices)
    np.testing.assert_allclose(as_documents.data, as_text.data, rtol=1e-6)


def test_a_lexical_model_has_two_rows_of_each_query_and_one_vector() -> None:
    plain, lexical = small_model(), small_model(encoder=small_encoder(lexical=BM25))
    vocabulary, analyzer = plain.query_vocabulary, plain.encoder.analyzer
    rows_of = LexicalRows(BM25, vocabulary.frequency_of, vocabulary.n_documents)
    texts = count_rows(vocabulary, analyzer.tokens(list(QUERIES)))
    fields = field_counts(vocabulary, plain.encoder.view, analyzer, DOCUMENTS)
    for old, new, rows in (
        (plain.encode_queries(QUERIES), lexical.encode_queries(QUERIES), rows_of.queries([texts])),
        (plain.encode_query_documents(DOCUMENTS), lexical.encode_query_documents(DOCUMENTS), rows_of.queries(fields)),
    ):
        assert old.learned_rows is old.rows
        np.testing.assert_array_equal(new.vectors, old.vectors)
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(new.learned_rows, name), getattr(old.rows, name))
            np.testing.assert_array_equal(getattr(new.rows, name), getattr(rows, name))
        assert not np.array_equal(new.rows.data, old.rows.data)


def test_words_of_queries_count_what_the_model_says() -> None:
    """Words outside the vocabulary count as they did, and vectors are the same."""
    plain = small_model(encoder=small_encoder(lexical=BM25))
    weighed = small_model(encoder=small_encoder(lexical=BM25), word_weights=WORD_WEIGHTS)
    assert weighed.encoder_id == plain.encoder_id
    assert weighed.model_id != plain.model_id
    before, after = plain.encode_queries(QUERIES), weighed.encode_queries(QUERIES)
    np.testing.assert_array_equal(after.vectors, before.vectors)
    np.testing.assert_array_equal(after.rows.indices, before.rows.indices)
    factors = [WORD_WEIGHTS[i] if i < 20 else 1 for i in before.rows.indices]
    np.testing.assert_allclose(after.rows.data, before.rows.data * factors, rtol=1e-6)
    assert before.rows.indices.max() >= 20


@pytest.mark.parametrize(
    ("weights", "lexical", "message"),
    [
        (np.ones((1, 20)), BM25, r"word_weights have shape \(1, 20\): give 20, one per word"),
        (np.ones(19), BM25, r"word_weights have shape \(19,\): give 20, one per word"),
        (np.zeros(20), BM25, "word_weights hold a value that is not finite and above 0"),
        (np.full(20, np.inf), BM25, "word_weights hold a value that is not finite and above 0"),
        (np.ones(20), None, "word_weights need lexical settings, and this model has none"),
    ],
)
def test_weights_of_words_that_fit_nothing_are_refused(weights: Any, lexical: Any, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        small_model(encoder=small_encoder(lexical=lexical), word_weights=weights.astype(np.float32))


def test_a_query_view_reads_its_own_fields() -> None:
    model = small_model(query_view=TextView.parse(["title"]))
    titles = model.encode_query_documents(DOCUMENTS[:1])
    np.testing.assert_array_equal(titles.rows.indices, model.encode_queries(["ash tree"]).rows.indices)


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_the_file_is_what_safetensors_would_write_and_reads(make: Any, tmp_path: Path) -> None:
    tensors = tensors_of(make())
    ours = b"".join(chunks_of(tensors))
    assert ours == safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    path = tmp_path / "x.safetensors"
    path.write_bytes(ours)
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == set(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_large_arrays_are_written_in_pieces_with_the_same_hash() -> None:
    tensors = {"V": np.arange(2_000_000, dtype=np.float32).reshape(-1, 100)}
    chunks = [bytes(chunk) for chunk in chunks_of(tensors)]
    assert max(map(len, chunks)) <= 1 << 20
    assert digest_of(tensors)[1] == sum(map(len, chunks))
    assert b"".join(chunks) == safetensors.numpy.save(tensors)


def test_impossible_models_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="U has 4 dimensions and V 3"):
        small_model(U=small_table(20, 4))
    with pytest.raises(ShapeMismatch, match="U has 21 rows for a vocabulary of 20"):
        small_model(U=small_table(21))
    with pytest.raises(InputError, match="U holds NaN"):
        small_model(U=np.full((20, 3), np.nan, np.float32))
    with pytest.raises(InputError, match=r"identity has weight 1.0 .* different vocabularies"):
        small_model(query_vocabulary=small_vocabulary(21))
    with pytest.raises(ConfigError, match=r"view of queries has 1 fields \(title\) .* weights of 2: give one weight"):
        small_model(encoder=small_encoder(lexical=BM25), query_view=TextView.parse(["title"]))


def test_what_json_does_not_know_is_kept_as_what_is_closest(tmp_path: Path) -> None:
    metrics = {
        "MAP": np.float32(0.5),
        "n": np.int64(3),
        "curve": np.array([1.0, np.nan]),
        "loss": float("inf"),
        7: (1, 2),
    }
    save_model(small_model(metrics=metrics, training={"data": Path("a/b")}), tmp_path)
    found = describe_model(tmp_path)
    assert found["metrics"] == {"MAP": 0.5, "n": 3, "curve": [1.0, None], "loss": None, "7": [1, 2]}
    assert found["training"] == {"data": "a/b"}
    with pytest.raises(ArtifactError, match=r"type set cannot be stored in manifest.json"):
        save_model(small_model(metrics={"x": {1}}), tmp_path)
    with pytest.raises(ArtifactError, match=r"manifest would have .* keep less"):
        save_model(small_model(training={"history": list(range(200_000))}), tmp_path)
    assert describe_model(tmp_path) == found


class FakeEngine:
    """An engine of which only the analysis chain is there."""

    def analyze(self, index: str, field: str, texts: list[str]) -> list[list[str]]:
        assert (index, field) == ("books", "body.text")
        return [text.lower().split() for text in texts]


def test_an_engine_s_analyzer_needs_that_engine(tmp_path: Path) -> None:
    engine: Any = FakeEngine()
    config = AnalyzerConfig(kind="engine", engine_field="books/body.text")
    analyzer = make_analyzer(config, lambda texts: engine.analyze("books", "body.text", texts))
    save_model(small_model(encoder=replace(small_encoder(), analyzer=analyzer)), tmp_path)
    with pytest.raises(ConfigError, match=r"engine:books/body.text.*--engine"):
        load_model(tmp_path)
    loaded = load_model(tmp_path, engine=engine)
    assert len(loaded.encode_queries(["ash TREE"]).rows.indices) == 2
    assert describe_model(tmp_path)["analyzer"]["kind"] == "engine"


def test_another_quantisation_is_another_encoder() -> None:
    ids = {small_model(encoder=small_encoder(quantisation)).encoder_id for quantisation in QUANTISATIONS}
    assert len(ids) == 3


def test_the_manifest_is_readable_and_sorted(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path)
    text = (tmp_path / "manifest.json").read_text(encoding="ascii")
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert '\n  "n_dims": 3,\n' in text
    assert manifest_bytes(sealed(json.loads(text))) == text.encode()


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "model.run").write_text("q1 Q0 d1 1 0.5 x\n")
    save_model(small_model(), tmp_path)
    save_model(small_model(seed=2), tmp_path)
    assert (tmp_path / "model.run").read_text() == "q1 Q0 d1 1 0.5 x\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_an_encoder_is_not_made_twice(tmp_path: Path) -> None:
    """Loading verifies the encoder id, so a loaded encoder already knows it."""
    save_model(small_model(), tmp_path)
    assert "encoder_id" in load_model(tmp_path).encoder.__dict__
    assert isinstance(load_model(tmp_path).encoder, Encoder)
