"""Tables of words: nearest columns by hand, and small runs of T10 and T11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from papers.bilingual import mates_study, read_bilingual
from papers.methods.projection import Projection
from papers.methods.word_pairs import Bilinear
from papers.registry import Fitted, TaskRequest
from papers.word_tasks import T10, T11, WordSpace, spread_words, word_space
from reranker.errors import TrainingError
from tests.papers.bilingual_corpus import quiet

SPACE = WordSpace(
    ("neko", "inu"),
    ("cat", "dog", "cats", "vet"),
    np.array([[10, 1], [0, 0.1]], np.float32),
    np.array([[1, 0], [0, 1], [0.8, 0], [0.5, 0.6]], np.float32),
)
ALL = np.arange(4)


def test_T10_nearest_columns_by_hand() -> None:  # noqa: N802
    assert SPACE.nearest(0, ALL, 3) == ["cats", "vet", "dog"]
    assert SPACE.nearest(0, np.array([0, 1, 3]), 5) == ["vet", "dog"]
    # (10, 1) is far from all columns and nearest to the longest one; at unit length only its direction counts.
    assert SPACE.nearest(0, ALL, 1, of_queries=True) == ["cat"]
    assert SPACE.unit().nearest(1, ALL, 2, of_queries=True) == ["dog", "vet"]
    assert SPACE.unit().nearest(0, ALL, 2, of_queries=True) == ["cat", "cats"]


def test_T10_spaces_are_the_tables_of_a_system(bilingual_folder: Path) -> None:  # noqa: N802
    study = mates_study(read_bilingual(bilingual_folder, quiet), 0)
    U, V = (np.zeros((len(side.words), 2), np.float32) for side in (study.queries, study.documents))
    for scorer in (Bilinear(U, V, 0.0), Projection(U, V)):
        space = word_space(Fitted(scorer), study)
        assert space.U is U and space.V is V
        assert space.query_words[0].startswith("v") and space.document_words[0].startswith("w")
    with pytest.raises(TrainingError, match="no word vectors"):
        word_space(Fitted(object()), study)  # type: ignore[arg-type]


def test_words_are_spread_over_the_ranks() -> None:
    names = ["the", "a", "12", *(f"word{number}" for number in range(300)), "rare"]
    frequency = np.array([400, 350, 340, *range(330, 30, -1), 1])
    places = spread_words(names, frequency, 6, 5)
    assert len(places) == 6 and places == sorted(places)
    assert not {names[place] for place in places} & {"a", "12", "rare"}
    assert places[-1] - places[-2] > places[1] - places[0]
    assert spread_words(names[:3], frequency[:3], 6, 5) == [0]


def test_T10_small(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = T10.run(TaskRequest(bilingual_folder, tmp_path, small=True), quiet)
    assert [table.title.split(":")[0] for table in section.tables] == [
        "UᵀV + I (PSI k = 2)",
        "CL-LSI",
        "PSI from CL-LSI",
    ]
    one, across, _ = section.tables
    assert all(word.startswith("w") and word not in nearest.split(", ") for word, _, nearest in one.rows)
    found = sum(f"w{word[1:]}" in nearest.split(", ") for word, _, nearest in across.rows)
    assert all(word.startswith("v") for word, *_ in across.rows)
    assert found >= len(across.rows) / 4  # chance: 5 of 150 words


def test_T10_a_system_without_word_vectors_leaves_the_tables_of_the_others(  # noqa: N802
    bilingual_folder: Path, tmp_path: Path
) -> None:
    asked = ("bm25", "utv-plus-i", "mates-plsa", "cl-lsi")
    section = T10.run(TaskRequest(bilingual_folder, tmp_path, asked, small=True), quiet)
    assert [table.title.split(":")[0] for table in section.tables] == ["UᵀV + I (PSI k = 2)", "CL-LSI"]
    assert [one.split(":")[0] for one in section.sentences if "no word vectors" in one] == [
        "BM25 has no table",
        "PLSA of joined pairs has no table",
    ]


def test_T11_small(bilingual_folder: Path, tmp_path: Path) -> None:  # noqa: N802
    section = T11.run(TaskRequest(bilingual_folder, tmp_path, small=True), quiet)
    words, grams = section.tables
    assert len(words.rows) == 12
    for term, near in words.rows:
        assert " " not in term and term not in [one.split()[0] for one in near.split(", ")]
    for term, near in grams.rows:
        assert len(term.split()) == 2
        values = [float(one.split()[1]) for one in near.split(", ")]
        assert values == sorted(values, reverse=True) and values[0] > 0
