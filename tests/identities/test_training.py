"""Identities of the learned models: restricted and untrained ones against those that they must equal."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.models.ranking_model import RankingModel
from reranker.text.rows import inner_products
from reranker.text.view import TextView
from reranker.training import DocumentSource, TrainConfig, from_links, train_model
from reranker.training.config import schedule_of
from reranker.training.trainer import Trainer, start_parameters
from tests.unit.training.synthetic import corpus_of, problem_of, synonyms, write_documents

LINKS = synonyms()[1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("identities") / "docs.jsonl", synonyms()[0])


def trained(path: Path, **settings: Any) -> RankingModel:
    config = TrainConfig(**({"dim": 8, "epochs": 1} | settings))
    return train_model(DocumentSource(path, TextView.parse(["title^1", "text^1"])), from_links(LINKS), config)[0]


IN_A_NEW_PROCESS = """
import sys
from pathlib import Path
from tests.identities.test_training import id_of
print(id_of(Path(sys.argv[1])))
"""


def id_of(path: Path) -> str:
    """Return the id of a model of two epochs."""
    return trained(path, epochs=2).model_id


@pytest.mark.slow
def test_cold_and_warm_caches_of_compiled_code_give_the_same_model(path: Path, tmp_path: Path) -> None:
    """Code that numba compiled before, compiles now and read from its cache; two BLAS threads and one."""
    models = {id_of(path)}
    for threads in ("1", "2"):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": threads}
        command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        models.add(done.stdout.split()[-1])
    assert any((tmp_path / "cache").iterdir())
    assert len(models) == 1


def scores_of(model: RankingModel) -> tuple[np.ndarray, np.ndarray]:
    """Return (f, q.d) of some documents as queries."""
    documents = synonyms()[0][:40]
    queries, encoded = model.encode_query_documents(documents), model.encoder.encode(documents)
    lexical = inner_products(queries.rows, encoded.rows)
    return queries.vectors @ encoded.vectors.T + model.identity * lexical, lexical


def test_no_learned_row_is_tfidf(path: Path) -> None:
    """M08 at n = 0 is TFIDF."""
    model = trained(path)
    restricted = replace(model, U=model.U[:0], U_short=None, encoder=replace(model.encoder, V=model.encoder.V[:0]))
    scores, lexical = scores_of(restricted)
    np.testing.assert_array_equal(scores, lexical)


def test_an_untrained_model_is_tfidf(path: Path) -> None:
    """V = 0 at the start: f = a q.d."""
    evidence = from_links(LINKS)
    problem = problem_of(corpus_of(path, evidence), evidence)
    schedule = schedule_of(TrainConfig(dim=8), queries_are_texts=False, unseen_documents=False)
    U, V = start_parameters(schedule, problem.n_columns, 8, np.random.default_rng(0))
    assert U.any()
    assert not V.any()
    untrained = Trainer(problem, schedule, np.random.default_rng(0), evaluate=lambda _u, _v: 0.0)
    result = untrained.run(U, V)
    assert result.best_epoch == 0
    learned = trained(path)
    model = RankingModel(
        replace(learned.encoder, V=np.zeros_like(learned.encoder.V)), learned.query_vocabulary, learned.U, 3.0
    )
    scores, lexical = scores_of(model)
    assert lexical.any() and model.U.any()
    np.testing.assert_array_equal(scores, np.float32(3.0) * lexical)
    assert scores_of(learned)[0].tobytes() != scores.tobytes()
    np.testing.assert_array_equal(result.V, 0)
