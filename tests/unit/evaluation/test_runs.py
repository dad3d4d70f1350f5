"""TREC files: what is written is read back in the same order by everybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reranker.evaluation import (
    InnerProducts,
    RankingTask,
    RunWriter,
    draw_tuples,
    evaluate,
    evaluate_run,
    strictly_decreasing,
    token,
    write_qrels,
)
from tests.engines.policy import library
from tests.seeds import seeded_rng
from tests.unit.evaluation.read_run import read_run


def task_of(n_documents: int, grades: dict[int, float] | None = None) -> RankingTask:
    judged = np.zeros((1, n_documents), dtype=np.float32)
    for document, grade in (grades or {0: 1.0}).items():
        judged[0, document] = grade
    names = tuple(f"d{number:03d}" for number in range(n_documents))
    return RankingTask(("q 1",), names, sp.csr_matrix(judged), sp.csr_matrix(np.zeros((1, n_documents), dtype=bool)))


@given(
    scores=hnp.arrays(
        np.float32,
        st.integers(0, 60),
        elements=st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, 1e-30]),
    )
)
@settings(max_examples=150)
def test_written_scores_decrease_strictly(scores: np.ndarray) -> None:
    ordered = np.sort(scores)[::-1]
    lowered = strictly_decreasing(ordered)
    written = np.array([float(f"{value:.10g}") for value in lowered])
    assert (np.diff(written) < 0).all()
    if len(ordered):
        largest = max(float(np.abs(ordered).max()), 1e-6)
        assert np.abs(lowered - ordered).max() <= largest * len(ordered) * 2.0**-21


def test_scores_without_ties_stay_as_they_are() -> None:
    scores = np.array([3.0, 2.5, 0.25, -1.0], dtype=np.float32)
    assert strictly_decreasing(scores).tolist() == scores.tolist()


def test_run_and_judgements_give_the_same_measures_to_another_tool(tmp_path: Path) -> None:
    """Scores full of ties: trec_eval (inside ir_measures) would order them by id, descending, if they stayed ties."""
    ir_measures = library("ir_measures")
    rng = seeded_rng()
    task = task_of(50, {3: 1.0, 17: 2.0, 40: 1.0})
    vectors = rng.integers(0, 3, size=(50, 1)).astype(np.float32)
    scorer = InnerProducts(np.ones((1, 1), dtype=np.float32), vectors)
    with RunWriter(tmp_path / "model.run", task, "model") as writer:
        result = evaluate(task, scorer, draw_tuples(task, rng, 10), on_block=writer.write)
    write_qrels(tmp_path / "qrels.txt", task)
    names = [ir_measures.parse_measure(name) for name in ("AP", "P@10", "RR")]
    found = ir_measures.calc_aggregate(
        names,
        ir_measures.read_trec_qrels(str(tmp_path / "qrels.txt")),
        ir_measures.read_trec_run(str(tmp_path / "model.run")),
    )
    assert {str(name): value for name, value in found.items()} == pytest.approx(
        {name: result.mean(name) for name in ("AP", "P@10", "RR")}
    )
    run = read_run(tmp_path / "model.run")
    qrels = {"q%201": {"d003": 1.0, "d017": 2.0, "d040": 1.0}}
    assert evaluate_run(qrels, run)["nDCG@10"]["q%201"] == pytest.approx(result.mean("nDCG@10"))


def test_six_columns(tmp_path: Path) -> None:
    documents = np.array([[2, 0, -1]], dtype=np.int32)
    with RunWriter(tmp_path / "a.run", task_of(3), "bm25") as writer:
        writer.write(0, documents, np.array([[0.5, 0.25, -np.inf]], dtype=np.float32))
    assert (tmp_path / "a.run").read_text() == "q%201 Q0 d002 1 0.5 bm25\nq%201 Q0 d000 2 0.25 bm25\n"


def test_ids_with_white_space_become_one_word() -> None:
    assert token("a b\tc\u00a0d") == "a%20b%09c%C2%A0d"
    assert token("a%20b") == "a%20b"
