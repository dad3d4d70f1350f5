"""A model folder written by format version 1, kept for ever: every later program must read it and score the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from reranker.models.model_folder import load_model, save_model

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "model_v1.json").read_text(encoding="utf-8"))


def test_a_version_1_model_loads_with_its_ids_and_scores() -> None:
    model = load_model(HERE / "model_v1")
    assert model.model_id == EXPECTED["model_id"]
    assert model.encoder_id == EXPECTED["encoder_id"]
    documents = model.encoder.encode(EXPECTED["documents"])
    assert documents.source_hashes == EXPECTED["source_hashes"]
    queries = model.encode_queries(EXPECTED["queries"])
    scores = model.scorer.score_matrix(queries.rows, documents.rows, documents.vectors)
    np.testing.assert_allclose(scores, EXPECTED["scores"], rtol=1e-5, atol=2e-6)


def test_a_version_1_model_is_still_written_byte_for_byte(tmp_path: Path) -> None:
    save_model(load_model(HERE / "model_v1"), tmp_path)
    for path in (HERE / "model_v1").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
