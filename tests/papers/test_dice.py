"""DICE neighbours: counts by hand, the same neighbours as the table that models use, and the command."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from papers.methods.dice import DiceCounter
from papers.methods.word_pairs import dice_neighbours
from reranker.cli.main import main
from reranker.errors import ConfigError, InputError
from reranker.text.rows import select_columns
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
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


@pytest.mark.parametrize("command", ["words dice cat", "words synonyms", "links pagerank", "inverted build"])
def test_the_commands_that_went_are_named_with_what_to_use(command: str) -> None:
    gone = CliRunner().invoke(main, command.split())
    assert gone.exit_code == 2 and "was removed in 0.2" in gone.output
