"""Documents that stand high for a query by the model as it is: against all scores, and with limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reranker.arrays import Float32, Int64
from reranker.kernels.rows import embed_rows
from reranker.kernels.sgd import LexicalValues
from reranker.training import trainer
from reranker.training.config import TrainConfig, schedule_of
from reranker.training.problem import Problem, csr_of
from reranker.training.trainer import NegativeMiner, Trainer, TrainingCheckpoint, start_parameters, steps_of
from reranker.training.training_set import from_links
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Links, Sources, corpus_of, problem_of, synonyms, write_documents

DIM = 6


def made(folder: Path, documents: Sources, links: Links, held_out: tuple[str, ...] = ()) -> Problem:
    evidence = from_links(links)
    return problem_of(corpus_of(write_documents(folder / "docs.jsonl", documents), evidence), evidence, held_out)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    documents, links = synonyms()
    held_out = tuple(document["id"] for document in documents[::5])
    kept = [link for link in links if not set(held_out) & set(link)]
    return made(tmp_path_factory.mktemp("nearest"), documents, kept, held_out)


def with_own_lexical_rows(problem: Problem) -> Problem:
    rng = seeded_rng(1)
    queries, documents = (rng.random(len(r.data)).astype(np.float32) for r in (problem.queries, problem.documents))
    return replace(problem, lexical=LexicalValues(queries, queries**2, documents))


def tables(problem: Problem, seed: int = 2) -> tuple[Float32, Float32]:
    """Return U and Vd of random tables; the last words have no row."""
    U, V = (seeded_rng(seed).normal(size=(2, max(problem.n_columns - 9, 1), DIM)) / 3).astype(np.float32)
    return U, embed_rows(problem.documents, V)


def true_nearest(problem: Problem, U: Float32, vectors: Float32, a: float, n: int, n_lexical: int) -> Int64:
    """Return what all scores say; the lexical ones past each query's ``n_lexical`` highest count as the last of these.

    Ties are of documents that share no word with a query, and those have different vectors.
    """
    q, d = (csr_of(rows, problem.n_columns) for rows in (problem.queries, problem.documents))
    q.data, d.data = problem.lexical.queries, problem.lexical.documents
    pool, known = problem.negatives.pool, problem.negatives
    lexical = (q @ d.T).toarray()[:, pool]
    floor = np.sort(lexical, axis=1)[:, -min(n_lexical, len(pool))]
    scores = embed_rows(problem.queries, U) @ vectors[pool].T + a * np.maximum(lexical, floor[:, None])
    for row in range(len(scores)):
        scores[row, np.isin(pool, known.known[known.known_indptr[row] : known.known_indptr[row + 1]])] = -np.inf
    return np.sort(pool[np.argsort(-scores, axis=1)[:, :n]], axis=1)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("a", "n_lexical"), [(8.0, 300), (0.0, 300), (3.0, 20)])
def test_the_true_nearest_are_listed(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, own: bool, a: float, n_lexical: int
) -> None:
    monkeypatch.setattr(trainer, "N_NEAREST", 12)
    monkeypatch.setattr(trainer, "_N_LEXICAL", n_lexical)
    problem = with_own_lexical_rows(problem) if own else problem
    U, vectors = tables(problem)
    rows = NegativeMiner(problem, seeded_rng()).look_up(U, vectors, a)
    asked = np.unique(problem.tuples.query)
    assert rows.shape == (len(problem.queries.indptr) - 1, 12) and rows.dtype == np.int32
    assert len(asked) == len(rows), "every query of these links is asked"
    expected = true_nearest(problem, U, vectors, a, 12, n_lexical)
    # Scores added up in another order may swap two documents at the border.
    same = np.array([len(np.intersect1d(left, right)) for left, right in zip(rows, expected, strict=True)])
    assert same.min() >= 11
    assert (same == 12).mean() > 0.95


def test_known_and_held_out_documents_are_never_listed_and_seeds_tell(problem: Problem) -> None:
    U, vectors = tables(problem)
    rows, again = (NegativeMiner(problem, seeded_rng(3)).look_up(U, vectors, 8.0) for _ in range(2))
    np.testing.assert_array_equal(rows, again)
    assert rows.shape[1] == trainer.N_NEAREST
    assert (np.diff(rows, axis=1) > 0).all()
    assert np.isin(rows, problem.negatives.pool).all()
    known = problem.negatives
    for row, listed in enumerate(rows):
        assert not np.isin(listed, known.known[known.known_indptr[row] : known.known_indptr[row + 1]]).any()


def test_of_many_queries_and_documents_a_random_part_is_looked_at(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "N_NEAREST", 5)
    monkeypatch.setattr(trainer, "MAX_QUERIES", 7)
    monkeypatch.setattr(trainer, "MAX_DOCUMENTS", 50)
    U, vectors = tables(problem)
    miners = [NegativeMiner(problem, seeded_rng(s)) for s in (4, 4, 5)]
    first, same, _ = (miner.look_up(U, vectors, 8.0) for miner in miners)
    np.testing.assert_array_equal(first, same)
    assert first.shape == (7, 5) and (first >= 0).all() and len(np.unique(first)) <= 50
    rows = [miner.list_of for miner in miners]
    assert np.sort(rows[0][rows[0] >= 0]).tolist() == list(range(7)) and (rows[0] >= -1).all()
    assert rows[0].tolist() == rows[1].tolist() != rows[2].tolist()


@pytest.mark.parametrize("links", [[("a", "b")], [("a", "b"), ("a", "c"), ("a", "d")]])
def test_too_few_documents_for_a_list_give_none(tmp_path: Path, links: Links) -> None:
    """One query, beside whose known documents there are fewer than a list has."""
    documents = [{"id": name, "title": name, "text": f"word {name}"} for name in "abcd"]
    problem = made(tmp_path, documents, links)
    U, vectors = tables(problem)
    rows = NegativeMiner(problem, seeded_rng()).look_up(U, vectors, 8.0)
    assert rows.shape == (1, 3)
    assert rows.tolist() == [[-1, -1, -1]]


def test_one_query_among_enough_documents(problem: Problem, tmp_path: Path) -> None:
    documents, links = synonyms()
    problem = made(tmp_path, documents, links[:1])
    U, vectors = tables(problem)
    rows = NegativeMiner(problem, seeded_rng()).look_up(U, vectors, 8.0)
    np.testing.assert_array_equal(rows, true_nearest(problem, U, vectors, 8.0, trainer.N_NEAREST, 300))


def test_a_run_that_goes_on_between_look_ups_uses_the_negatives_of_the_last_one(
    problem: Problem, tmp_path: Path
) -> None:
    numbers = schedule_of(TrainConfig(dim=DIM, epochs=5), queries_are_texts=False, unseen_documents=False)
    numbers = replace(numbers, epochs=5, nearest_share=1.0)
    assert 4 not in trainer.LOOK_UPS and 3 in trainer.LOOK_UPS
    checkpoint = TrainingCheckpoint(tmp_path / "run", {"run": 1})

    def run(checkpoint: TrainingCheckpoint | None, stop_at: float = float("inf")) -> Float32:
        def progress(done: int, _total: int | None) -> None:
            if done >= stop_at:
                raise InterruptedError

        miner = NegativeMiner(problem, seeded_rng())
        by = Trainer(problem, numbers, seeded_rng(), nearest=miner, checkpoint=checkpoint, progress=progress)
        return by.run(*start_parameters(numbers, problem.n_columns, DIM, seeded_rng(1))).U

    with pytest.raises(InterruptedError):
        run(checkpoint, 4 * steps_of(problem) + 1)
    assert run(checkpoint).tobytes() == run(None).tobytes()


def test_before_the_first_step_the_ranking_is_by_words(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    U, vectors = tables(problem)
    nothing = np.zeros_like(vectors)
    monkeypatch.setattr(trainer, "N_NEAREST", 12)
    found = NegativeMiner(problem, seeded_rng()).look_up(U, nothing, 8.0)
    expected = true_nearest(problem, U, nothing, 8.0, 12, 300)
    same = np.array([len(np.intersect1d(left, right)) for left, right in zip(found, expected, strict=True)])
    assert (same == 12).mean() > 0.8, "documents without a common word are equals"
