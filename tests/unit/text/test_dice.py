"""DICE neighbours: counts by hand, the same neighbours as the table that models use, and the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from papers.methods.word_pairs import dice_neighbours
from reranker.cli.main import main
from reranker.errors import ConfigError, InputError
from reranker.text.rows import select_columns
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from reranker.words import DiceCounter
from tests.seeds import seeded_rng

TEXTS = [["cat", "sat", "mat"], ["cat", "mat"], ["mat", "cat", "cat"], ["dog", "sat"], ["dog", "mat"]]


def vocabulary_of(texts: list[list[str]]) -> Vocabulary:
    builder = VocabularyBuilder()
    builder.add(texts)
    return builder.build()


def test_T11_dice_by_hand() -> None:  # noqa: N802
    """The word "cat" is in 3 texts, "mat" in 4, together in 3; "sat" in 2, together with "cat" in 1."""
    counter = DiceCounter([["cat"], ["cat", "mat"]], vocabulary_of(TEXTS))
    counter.add(TEXTS)
    assert counter.documents == {"cat": 3, "cat mat": 1}
    found = counter.neighbours("cat")
    assert [(one.word, one.together, one.documents) for one in found] == [("cat", 3, 3), ("mat", 3, 4), ("sat", 1, 2)]
    assert [one.value for one in found] == pytest.approx([1.0, 6 / 7, 2 / 5])
    # The 2-gram "cat mat" stands in one text alone (in "mat cat cat" and "cat sat mat" it does not).
    assert [(one.word, one.value) for one in counter.neighbours("cat mat", 2)] == [("cat", 0.5), ("mat", 0.4)]


def test_T11_neighbours_are_those_of_the_table_that_models_use() -> None:  # noqa: N802
    rng = seeded_rng()
    texts = [[f"w{place}" for place in rng.choice(30, 8)] for _ in range(60)]
    vocabulary = vocabulary_of(texts)
    counts = select_columns(count_rows(vocabulary, texts), np.arange(len(vocabulary), dtype=np.int64))
    table = dice_neighbours(counts, 12, 4)
    counter = DiceCounter([[word] for word in vocabulary.words], vocabulary, 12)
    counter.add(texts)
    for place, word in enumerate(vocabulary.words):
        expected = [vocabulary.words[one] for one in table[place] if one >= 0]
        assert [one.word for one in counter.neighbours(word, 4)] == expected


def test_a_frequent_word_is_its_own_nearest_also_beside_another_of_the_same_documents() -> None:
    texts = [["cat", "paw"], ["cat", "paw", "dog"]]
    counter = DiceCounter([["cat"], ["paw"]], vocabulary_of(texts))
    counter.add(texts)
    for word, other in (("cat", "paw"), ("paw", "cat")):
        assert [(one.word, one.value) for one in counter.neighbours(word, 2)] == [(word, 1.0), (other, 1.0)]


def test_terms_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be counted"):
        DiceCounter([[]], vocabulary_of(TEXTS))
    counter = DiceCounter([["cta"]], vocabulary_of(TEXTS))
    counter.add(TEXTS)
    with pytest.raises(InputError, match="spelled alike: cat"):
        counter.neighbours("cta")
    with pytest.raises(InputError, match="was not counted"):
        counter.neighbours("dog")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, words in enumerate(TEXTS):
            file.write(json.dumps({"id": number, "title": words[0], "text": " ".join(words[1:])}) + "\n")
    return path


def test_the_command_lists_neighbours_of_words_and_of_words_in_a_row(documents: Path) -> None:
    result = CliRunner().invoke(main, ["words", "dice", "Cat", "cat mat", "--docs", str(documents), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["cat"][1] == {"word": "mat", "value": pytest.approx(6 / 7), "together": 3, "documents": 4}
    assert [one["word"] for one in found["cat mat"]] == ["cat", "mat"]
    shown = CliRunner().invoke(main, ["words", "dice", "dog", "--docs", str(documents), "--n", "2"])
    assert [line.split() for line in shown.stdout.splitlines() if line.strip()][1:] == [
        ["dog", "dog", "1.0000", "2", "2"],
        ["sat", "0.5000", "1", "2"],
    ]


def test_the_command_refuses_an_unknown_word_and_two_ways_to_cut(documents: Path) -> None:
    missing = CliRunner().invoke(main, ["words", "dice", "bird", "--docs", str(documents)])
    assert missing.exit_code == 3 and "no document holds 'bird'" in missing.output
    both = CliRunner().invoke(
        main, ["words", "dice", "cat", "--docs", str(documents), "--model", "m", "--analyzer", "unicode"]
    )
    assert both.exit_code == 2 and "leave out --analyzer" in both.output
