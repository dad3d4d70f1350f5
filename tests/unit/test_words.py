"""Neighbours and related words, of a model whose vectors are written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.errors import ConfigError, InputError
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary
from reranker.words import nearest_index_words, related_words, similar_words

WORDS = ("cat", "cats", "dog", "vet", "rare", "loose")
V = np.array([[3, 0], [2.5, 0.5], [0, 2], [1, 1], [3, 0.1]], np.float32)
U = np.array([[1, 0], [0, 1], [0.5, 0], [0, 0], [0, 0]], np.float32)


def model_of(query_words: tuple[str, ...] | None = None) -> RankingModel:
    """Return f with V by hand; the last word of each side has no learned vector."""
    frequency = np.array([9, 8, 7, 6, 2, 1], np.int64)
    vocabulary = Vocabulary(WORDS, frequency, 20)
    encoder = Encoder(TextView.parse(["text"]), make_analyzer(AnalyzerConfig()), vocabulary, "raw", V)
    if query_words is None:
        return RankingModel(encoder, vocabulary, U)
    other = Vocabulary(query_words, frequency[: len(query_words)], 20)
    return RankingModel(encoder, other, U[: len(query_words)], identity=0.0)


def test_T10_nearest_words_by_distance_and_by_cosine() -> None:  # noqa: N802
    found = similar_words(model_of(), "Cat", n=3)
    assert [one.word for one in found] == ["cats", "vet", "dog"]
    assert [one.value for one in found] == pytest.approx([np.sqrt(0.5), np.sqrt(5), np.sqrt(13)], abs=1e-6)
    assert [one.documents for one in found] == [8, 6, 7]
    by_cosine = similar_words(model_of(), "cat", n=3, measure="cosine")
    assert [one.word for one in by_cosine] == ["cats", "vet", "dog"]
    assert by_cosine[1].value == pytest.approx(1 / np.sqrt(2), abs=1e-6)
    assert similar_words(model_of(), "cat", n=1, min_documents=0)[0].word == "rare"


def test_T10_words_of_another_language_are_found_by_the_query_side() -> None:  # noqa: N802
    """U of neko is (1, 0), U of inu (0, 1): the nearest columns of V are vet (1, 1) and, by cosine, cat and dog."""
    model = model_of(("neko", "inu"))
    assert similar_words(model, "neko", side="queries", n=1)[0].word == "vet"
    assert similar_words(model, "neko", side="queries", n=1, measure="cosine")[0].word == "cat"
    assert similar_words(model, "inu", side="queries", n=1, measure="cosine")[0].word == "dog"
    assert [one.word for one in similar_words(model, "neko", side="queries", among="queries")] == ["inu"]


def test_nearest_words_of_the_index_are_related_or_else_spelled_alike() -> None:
    """U of cat is (1, 0): of the words in 3 documents or more, cats (2.5) and vet (1) have positive products."""
    assert nearest_index_words(model_of(), "cat") == ["cats", "vet"]
    assert nearest_index_words(model_of(), "cat", n=1) == ["cats"]
    assert nearest_index_words(model_of(), "dgo") == ["dog"]
    assert nearest_index_words(model_of(), "zzzz") == []


@pytest.mark.parametrize(
    ("word", "message"), [("cta", "spelled alike: cat"), ("loose", "no learned vector"), ("two words", "2 words")]
)
def test_words_that_cannot_be_looked_up(word: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        similar_words(model_of(), word)
    with pytest.raises(ConfigError, match="not one of"):
        similar_words(model_of(), "cat", measure="angle")  # type: ignore[arg-type]


def test_two_words_are_looked_up_in_a_model_with_bigrams() -> None:
    vocabulary = Vocabulary((*WORDS[:4], "cat␣vet"), np.array([9, 8, 7, 6, 5], np.int64), 20)
    encoder = Encoder(TextView.parse(["text"]), make_analyzer(AnalyzerConfig(bigrams=True)), vocabulary, "raw", V)
    model = RankingModel(encoder, vocabulary, U)
    assert [near.word for near in similar_words(model, "Cat vet", n=1)] == ["cat"]
    with pytest.raises(InputError, match="'vet␣cat' is not among the 5 words"):
        similar_words(model, "vet cat")


def test_related_words_are_the_terms_of_f() -> None:
    """For a query q and the document of one word j, f(q, e_j) is the sum of the pairs' weights over q's words."""
    model = model_of()
    query = "cat dog"
    found = related_words(model, query, n=99, min_documents=0)
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
    q = model.encode_queries([query]).rows
    weights = dict(zip(q.indices.tolist(), q.data.tolist(), strict=True))
    expected = {
        (WORDS[i], WORDS[j]): w * (float(U[i] @ V[j]) + (i == j)) for i, w in weights.items() for j in range(len(V))
    }
    for one in found:
        pair = (one.query_word, one.document_word)
        assert one.weight == pytest.approx(expected[pair], abs=1e-6)
        assert one.weight >= max(w for (_, word), w in expected.items() if word == one.document_word) - 1e-6
        assert one.same == (pair[0] == pair[1])
    assert [one.document_word for one in related_words(model, query, n=2)] == ["cat", "cats"]


def test_related_words_of_a_lexical_model_are_the_terms_of_f_for_documents_of_one_word() -> None:
    plain = model_of()
    lexical = LexicalSettings("bm25", (1.0,), (1.0,), b=(0.75,), mean_lengths=(1.0,), factor=0.5)
    model = replace(plain, encoder=replace(plain.encoder, lexical=lexical))
    query = model.encode_queries(["cat dog"])
    q, learned_q = (
        dict(zip(rows.indices.tolist(), rows.data.tolist(), strict=True)) for rows in (query.rows, query.learned_rows)
    )
    assert q.keys() == learned_q.keys()
    for one in related_words(model, "cat dog", n=99, min_documents=0):
        i, j = WORDS.index(one.query_word), WORDS.index(one.document_word)
        d = model.encoder.rows([{"text": one.document_word}])
        expected = learned_q[i] * float(U[i] @ V[j])
        if i == j:
            expected += q[i] * float(d.data[0])
        assert one.weight == pytest.approx(expected, abs=1e-6)


def test_a_word_without_vector_is_still_itself() -> None:
    found = related_words(model_of(), "loose", n=1)
    assert (found[0].document_word, found[0].same) == ("loose", True)
    with pytest.raises(InputError, match="knows no word"):
        related_words(model_of(), "unheard of")


def test_the_commands(tmp_path: Path) -> None:
    save_model(model_of(), tmp_path / "model")
    arguments = ["words", "similar", "cat", "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert [one["word"] for one in json.loads(result.stdout)] == ["cats", "vet", "dog"]
    table = CliRunner().invoke(main, [*arguments, "--n", "1"]).stdout.split()
    assert table == ["word", "distance", "documents", "cats", "0.7071", "8"]
    pairs = CliRunner().invoke(main, ["words", "pairs", "--query", "cat", "--model", str(tmp_path / "model")])
    assert pairs.stdout.splitlines()[1].split() == ["cat", "cat", "4.0000", "same", "word"]
    missing = CliRunner().invoke(main, ["words", "similar", "cta", "--model", str(tmp_path / "model")])
    assert missing.exit_code == 3 and "spelled alike: cat" in missing.stderr
