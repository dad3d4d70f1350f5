"""Two languages: what is read, how mates and links are split, and what no system may see."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from papers.bilingual import (
    BESIDE,
    ONCE,
    TRANSLATIONS,
    Bilingual,
    Side,
    bilingual_study,
    damped,
    languages_of,
    mates_study,
    read_bilingual,
    split_mates,
    translations,
)
from papers.study import study_texts, study_vocabulary
from reranker.errors import ConfigError, InputError
from tests.papers.bilingual_corpus import quiet


def write(folder: Path, language: str, texts: dict[str, tuple[str, str]]) -> None:
    with gzip.open(folder / f"docs_{language}.jsonl.gz", "wt", encoding="utf-8") as file:
        for one, (title, text) in texts.items():
            file.write(json.dumps({"id": one, "title": title, "text": text}) + "\n")


def test_latin_words_of_another_script_are_left_out_and_titles_weigh_in_documents(tmp_path: Path) -> None:
    write(tmp_path, "en", {"b": ("Bee", "the buzz"), "a": ("Ant", "red ant"), "c": ("Cat", "alone")})
    write(tmp_path, "ru", {"a": ("Муравей x_1", "ａｎｔ красный ant"), "b": ("Пчела", "std::vector жужжит")})
    corpus = read_bilingual(tmp_path, quiet)
    assert languages_of(tmp_path) == ("ru", "en")
    assert corpus.queries.as_queries() == [["муравей", "красный"], ["пчела", "жужжит"]]
    assert corpus.documents.ids == ("a", "b", "c")
    assert corpus.documents.as_documents()[1] == ["bee", "bee", "bee", "buzz"]
    assert corpus.documents.as_queries()[0] == ["ant", "red", "ant"]
    assert corpus.mates == ("a", "b")
    assert corpus.links == ()
    assert read_bilingual(tmp_path, quiet, limit=1).documents.ids == ("a",)


def test_links_are_between_known_documents(tmp_path: Path) -> None:
    for language in ("de", "fr"):
        write(tmp_path, language, {"a": ("", "a"), "b": ("", "b")})
    with gzip.open(tmp_path / "links_de.tsv.gz", "wt") as file:
        file.write("a\tb\na\tb\nb\tb\na\tz\n")
    corpus = read_bilingual(tmp_path, quiet)
    assert (corpus.queries.language, corpus.documents.language) == ("fr", "de")
    assert corpus.links == (("a", "b"),)


def test_a_folder_of_one_language_or_without_mates_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "en", {"a": ("", "a")})
    with pytest.raises(ConfigError, match=r"1 languages \(en\)"):
        languages_of(tmp_path)
    write(tmp_path, "fr", {"b": ("", "b")})
    with pytest.raises(InputError, match="has a mate"):
        read_bilingual(tmp_path, quiet)


def test_mates_are_split_at_random_without_overlap() -> None:
    split = split_mates(1000, 3)
    assert [len(part) for part in (split.train, split.valid, split.test)] == [630, 70, 300]
    assert sorted(np.concatenate([split.train, split.valid, split.test])) == list(range(1000))
    assert (split_mates(1000, 3).test == split.test).all()
    assert not np.array_equal(split_mates(1000, 4).test, split.test)
    with pytest.raises(InputError, match="19 mates are too few"):
        split_mates(19, 0)


def test_damped_rows_by_hand() -> None:
    tokens = [["cat", "cat", "dog"], ["eel"]]
    texts = damped(study_texts(tokens, study_vocabulary(tokens, None)), np.array([1.0, 2.0, 1.0]))
    weights = dict(zip(texts.words, texts.rows.toarray()[0], strict=True))
    length = np.hypot(*(idf * tf for idf, tf in zip(texts.idf[:2], (1 + np.log(2), 1.0), strict=True)))
    expected = {"cat": 1 + np.log(2), "dog": 1.0}
    for word, tf in expected.items():
        idf = texts.idf[texts.words.index(word)]
        assert weights[word] == pytest.approx(tf * idf / length, rel=1e-5)
    assert texts.counts.sum() == 4


def test_vocabulary_and_idf_of_mates_are_those_of_training_alone(bilingual_folder: Path) -> None:
    corpus = read_bilingual(bilingual_folder, quiet)
    study = mates_study(corpus, 0)
    split = split_mates(len(corpus.mates), 0)
    side = corpus.documents.as_queries()
    assert set(study.documents.words) == {word for row in split.train for word in side[row]}
    df = np.diff(study.documents.counts[split.train].tocsc().indptr)
    np.testing.assert_allclose(study.documents.idf, np.log(len(split.train) / df))
    assert study.mates is not None and len(study.mates[0]) == len(split.train)
    assert study.test.pool.tolist() == split.test.tolist()
    assert (study.test.task.grades.toarray() == np.eye(len(split.test))).all()
    # A training query belongs to its own mate.
    query, document = study.relevant.nonzero()
    assert split.train[query].tolist() == document.tolist()


def test_words_of_test_mates_are_unknown() -> None:
    ids = tuple(f"{i:02}" for i in range(20))
    texts = tuple([f"w{i}"] for i in range(20))
    side = Side("en", ids, tuple([] for _ in ids), texts)
    study = mates_study(Bilingual(side, side, ()), 0)
    assert len(study.documents.words) == 12  # 70 % of 20, less two to tune on
    assert study.documents.rows[study.test.pool].nnz == 0


def test_retrieval_never_shows_the_mate_nor_a_translation_learned_from_it(bilingual_folder: Path) -> None:
    corpus = read_bilingual(bilingual_folder, quiet)
    study = bilingual_study(corpus, 0)
    unseen = {corpus.mates[row] for row in split_mates(len(corpus.mates), 0).test}
    task = study.test.task
    assert set(task.query_ids) <= unseen
    for row, query in enumerate(task.query_ids):
        assert task.excluded[row, task.document_ids.index(query)]
    train, tested = set(zip(*study.relevant.nonzero(), strict=True)), set()
    place = {one: row for row, one in enumerate(corpus.mates)}
    for row, query in enumerate(task.query_ids):
        tested |= {(place[query], int(study.test.pool[column])) for column in task.grades[row].indices}
    assert not train & tested
    assert study.known is not None and tested <= set(zip(*study.known.nonzero(), strict=True))
    assert study.own.tolist() == list(range(len(corpus.mates)))
    filled = np.diff(study.queries.view("texts-ibm").indptr) > 0
    assert {one for one, there in zip(corpus.mates, filled, strict=True) if there} == unseen
    width = study.queries.rows.shape[1]
    beside = study.test.queries.view(BESIDE)
    assert (beside[:, :width].toarray() == study.test.queries.rows.toarray()).all()
    assert (beside[:, width:].toarray() == study.test.queries.view("texts-ibm").toarray()).all()


def test_documents_weigh_their_titles_and_queries_do_not(bilingual_folder: Path) -> None:
    study = bilingual_study(read_bilingual(bilingual_folder, quiet), 0)
    more, once = study.documents.counts.sum(), study.documents.view(ONCE).shape
    assert once == study.documents.rows.shape
    assert more == sum(24 + 3 for _ in range(len(study.documents)))


def test_B15_translation_by_a_one_to_one_table_is_the_text_itself() -> None:  # noqa: N802
    """Texts of one word each: DICE and model 1 both learn the identity."""
    mates = sp.csr_matrix(np.eye(4, dtype=np.float32))
    counts = sp.csr_matrix(np.array([[1, 2, 0, 0], [0, 0, 3, 1]], np.float32))
    found = translations(counts, np.array([1.0, 2.0, 1.0, 0.5]), mates, mates)
    assert tuple(found) == TRANSLATIONS
    weighted = np.log1p(counts.toarray()) * [1.0, 2.0, 1.0, 0.5]
    expected = weighted / np.linalg.norm(weighted, axis=1, keepdims=True)
    for rows in found.values():
        np.testing.assert_allclose(rows.toarray(), expected, rtol=1e-5)


def test_retrieval_without_links_is_refused(tmp_path: Path) -> None:
    texts = {f"{i:02}": ("", f"word{i} other{i % 3}") for i in range(30)}
    for language in ("en", "fr"):
        write(tmp_path, language, texts)
    with pytest.raises(InputError, match="0 links"):
        bilingual_study(read_bilingual(tmp_path, quiet), 0)
