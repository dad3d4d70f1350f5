"""Files and a model to scores: the same numbers as the model gives by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.baselines.comparison import (
    EncodedCorpus,
    experiment_of,
    lexical_task,
    read_corpus,
    tuning_task,
)
from reranker.errors import ConfigError, InputError
from reranker.evaluation import link_task, qrels_task
from reranker.formats import RejectLog
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.models.ranking_model import RankingModel
from reranker.tables import read_judgements
from tests.unit.small_models import DOCUMENTS, small_model, small_vocabulary

IDS = ["ash", "oak", "powder", "fire", "empty", "pump"]
LINKS = [("ash", "oak"), ("oak", "ash"), ("powder", "fire"), ("fire", "ash")]


def corpus_of(folder: Path, model: RankingModel) -> EncodedCorpus:
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps({"id": i, **d}) + "\n" for i, d in zip(IDS, DOCUMENTS, strict=True)))
    return read_corpus(path, model, IDS)


def test_document_queries_score_as_the_model_does(tmp_path: Path) -> None:
    model = small_model()
    corpus = corpus_of(tmp_path, model)
    task = link_task(LINKS, [], corpus.ids)
    experiment = experiment_of(model, corpus, task)
    sources = dict(zip(IDS, DOCUMENTS, strict=True))
    queries = model.encode_query_documents([sources[one] for one in task.query_ids])
    documents = model.encoder.encode([sources[one] for one in task.document_ids])
    expected = model.scorer.score_matrix(queries.rows, documents.rows, documents.vectors)
    assert experiment.model.block(0, len(task.query_ids)) == pytest.approx(expected, abs=1e-6)
    assert experiment.evaluation.task is task
    assert [corpus.ids[row] for row in experiment.evaluation.documents] == list(task.document_ids)


def test_keyword_queries_of_all_words_are_the_document_as_one_text(tmp_path: Path) -> None:
    model = small_model()
    corpus = corpus_of(tmp_path, model)
    task = link_task(LINKS, [], corpus.ids)
    sources = dict(zip(IDS, DOCUMENTS, strict=True))
    texts = [f"{sources[one]['title']} {sources[one]['text']}" for one in task.query_ids]
    documents = model.encoder.encode([sources[one] for one in task.document_ids])
    expected = model.scorer.score_matrix(model.encode_queries(texts).rows, documents.rows, documents.vectors)
    found = experiment_of(model, corpus, task, n_words=1000).model.block(0, len(task.query_ids))
    assert found == pytest.approx(expected, abs=1e-6)


def test_few_keywords_are_words_of_the_document_for_model_and_baselines_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    corpus = corpus_of(tmp_path, model)
    task = link_task(LINKS, [], corpus.ids)
    experiment = experiment_of(model, corpus, task, n_words=3, seed=7)
    monkeypatch.setattr("reranker.lexical.corpus._BLOCK", 3)  # here in blocks
    tuned = lexical_task(model, corpus, task, n_words=3, seed=7)
    counts = experiment.evaluation.queries[0]
    assert np.diff(counts.indptr).tolist() == [3] * len(task.query_ids)
    assert np.array_equal(counts.toarray(), tuned.queries[0].toarray())
    whole = corpus.lexical.counts(corpus.rows_of(task.query_ids))
    for row in range(len(task.query_ids)):
        chosen = set(corpus.lexical.columns[counts[row].indices].tolist())
        assert chosen <= set(whole[row].indices.tolist())


@pytest.mark.parametrize("form", ["bm25", "tfidf"])
def test_lexical_scores_do_not_depend_on_how_many_documents_are_weighted_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    model = small_model()
    lexical = corpus_of(tmp_path, model).lexical
    n, n_fields = lexical.n_documents, len(lexical.fields)
    ones = (1.0,) * n_fields
    settings = LexicalSettings(form, ones, ones, b=(0.75,) * n_fields, mean_lengths=lexical.mean_lengths)
    documents = np.arange(n, dtype=np.int64)[::-1]
    queries = lexical.document_queries(np.arange(3))
    whole = lexical.scorer(queries, documents, settings)
    rows_of, sizes = LexicalRows.documents, []

    def counted(self: LexicalRows, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        sizes.append(counts[0].shape[0])
        return rows_of(self, counts)

    monkeypatch.setattr(LexicalRows, "documents", counted)
    monkeypatch.setattr("reranker.lexical.corpus._BLOCK", 3)
    assert np.array_equal(lexical.scorer(queries, documents, settings).block(0, 3), whole.block(0, 3))
    assert sum(sizes) == n and max(sizes) == 3
    assert lexical.scorer(queries, documents[:0], settings).shape == (3, 0)


def test_text_queries_score_as_the_model_does(tmp_path: Path) -> None:
    model = small_model()
    corpus = corpus_of(tmp_path, model)
    texts = {"q1": "grey powder", "q2": "P-4711x", "q3": ""}
    task = qrels_task({"q1": {"powder": 1.0}, "q2": {"pump": 2.0}, "q3": {"ash": 1.0}}, texts, corpus.ids)
    experiment = experiment_of(model, corpus, task, texts)
    sources = dict(zip(IDS, DOCUMENTS, strict=True))
    documents = model.encoder.encode([sources[one] for one in task.document_ids])
    expected = model.scorer.score_matrix(model.encode_queries(list(texts.values())).rows, documents.rows)
    assert experiment.model.block(0, 3) == pytest.approx(expected, abs=2e-3)  # documents are rounded to float16
    assert experiment.model.block(2, 3).tolist() == [[0.0] * len(IDS)]


def test_a_model_without_identity_does_not_compare_words(tmp_path: Path) -> None:
    model = small_model(identity=0.0, query_vocabulary=small_vocabulary(15), U=np.zeros((15, 3), np.float32))
    corpus = corpus_of(tmp_path, model)
    task = link_task(LINKS, [], corpus.ids)
    assert not experiment_of(model, corpus, task).model.block(0, 4).any()
    with pytest.raises(ConfigError, match="vocabulary of their own"):
        experiment_of(model, corpus, task, n_words=2)


def test_baselines_are_tuned_on_the_other_documents_where_links_lead_there() -> None:
    ids = ["a", "b", "c", "d"]
    inside = tuning_task([("a", "b")], ids, ["a", "b", "c"], [("a", "b"), ("a", "c")])
    assert inside.document_ids == ("a", "b", "c")
    assert inside.excluded.toarray().tolist() == [[True, False, True]]
    outside = tuning_task([("a", "b")], ids, ["c", "d"])
    assert outside.document_ids == ("a", "b")


def test_known_links_that_are_not_tuned_on_take_no_part() -> None:
    ids = ["a", "b", "c", "d"]
    # Of documents that no tuning link names, too: they must not be taken for one another.
    known = [(source, target) for source in ids for target in ids if (source, target) != ("b", "d")]
    task = tuning_task([("b", "a"), ("a", "b"), ("b", "a")], ids, ids, known)
    assert task.query_ids == ("a", "b")
    assert task.grades.toarray().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert task.excluded.toarray().tolist() == [[True, False, True, True], [False, True, True, False]]


def test_bad_lines_are_reported_and_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "a", "title": "ash tree", "text": "wood"}\nnot json\n{"id": "a", "text": "again"}\n')
    with RejectLog() as rejects:
        assert read_corpus(path, small_model(), rejects=rejects).ids == ("a",)
        assert rejects.count == 2
    path.write_text("")
    with pytest.raises(InputError, match="no document"):
        read_corpus(path, small_model())


def test_of_a_pair_judged_twice_the_last_grade_counts(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("q\ta\t1\nq\ta\t3\nq\tb\t0\n")
    assert read_judgements(path) == {"q": {"a": 3.0, "b": 0.0}}
