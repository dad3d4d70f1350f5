"""docs/model.md states the score so fully that its program recomputes it from a model's files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reranker import DocumentSource, TrainConfig, from_links, read_links, save_model, train_model
from reranker.kernels.packing import Quantisation
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import QueryMemory, memory_rows
from reranker.models.impacts import Impacts
from reranker.models.ranking_model import RankingModel
from reranker.models.repeated import RepeatedQueries
from reranker.models.training_queries import TrainingQueries
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.text.tfidf import count_rows, field_counts

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("ordered", "dictionary", "list", "set", "queue", "tree", "graph", "hash")


def with_vectors(model: RankingModel) -> RankingModel:
    """Return the model with a field of given vectors, the tested one of which is longer than the longest."""
    rng = np.random.default_rng(1)
    mean, axes = rng.normal(size=3).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    view = replace(model.encoder.view, vector="vector")
    encoder = replace(model.encoder, view=view, vector_field=VectorField(mean, axes, 1.5))
    U = rng.normal(size=(len(model.query_vocabulary), 2)).astype(np.float32)
    assert model.mean_vector is not None
    mean_vector = np.concatenate([model.mean_vector, rng.normal(size=2)]).astype(np.float32)
    return replace(model, encoder=encoder, word_encoder=WordEncoder(U, 0.7), mean_vector=mean_vector)


WITH_MEMORY = LexicalSettings("bm25", (4.0, 1.0, 6.0), (1.0, 1.0, 0.0), 9.0, (0.3, 0.8, 0.2), (1.0, 7.0, 3.0))
SHORT = "Hash tree of an unseen_word tree"
LONG = "Hash tree of an unseen_word tree list set graph stack map sort word"
"""A query of more than ten different words."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantisation", "lexical"),
    [
        ("float16", None),
        ("float32", None),
        ("float16", LexicalSettings("tfidf", (3.0, 0.5), (1.0, 1.0), factor=0.7)),
        ("float16", LexicalSettings("bm25", (4.0, 1.0), (1.0, 1.0), 1.5, (0.3, 0.8), (1.0, 7.0), "sqrt", 0.4)),
        ("float32", LexicalSettings("bm25", (0.0, 1.0), (1.0, 1.0), 0.8, (1.0, 1.0), (0.0, 7.0), "log")),
        (
            "float32",
            LexicalSettings("bm25", (4.0, 1.0), (1.0, 1.0), 9.0, (0.3, 0.8), (1.0, 7.0), "once", 0.4, (6.0, 2.0)),
        ),
        ("float16", WITH_MEMORY),
    ],
    ids=lambda value: (
        f"{len(value.b)}-" * bool(value.b) + value.form + "-coverage" * bool(value.coverage)
        if isinstance(value, LexicalSettings)
        else value
    ),
)
def test_the_program_of_the_page_gives_the_score(
    tmp_path: Path, quantisation: Quantisation, lexical: LexicalSettings | None
) -> None:
    check_program(tmp_path, quantisation, lexical, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.3], ids=["short only", "all"])
@pytest.mark.parametrize("query", [SHORT, LONG], ids=["short", "long"])
def test_the_program_reads_the_rows_for_short_queries(tmp_path: Path, query: str, weight: float) -> None:
    check_program(tmp_path, "float16", WITH_MEMORY, query, short_row_weight=weight)


def check_program(
    tmp_path: Path,
    quantisation: Quantisation,
    lexical: LexicalSettings | None,
    query: str,
    *,
    short_row_weight: float | None = None,
) -> None:
    documents = {
        f"d{i}": {"title": WORDS[i % 8], "text": f"About {WORDS[i % 8]} and {WORDS[(i // 8) % 8]}, number {i}: {i % 7}"}
        for i in range(120)
    }
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps({"id": key, **source}) + "\n" for key, source in documents.items()))
    links = tmp_path / "links.tsv"
    links.write_text("".join(f"d{i}\td{(i * 7 + k) % 120}\n" for i in range(120) for k in (1, 9)))
    model, _ = train_model(
        DocumentSource(docs, quantisation=quantisation), from_links(read_links(links)), TrainConfig(epochs=2)
    )
    memory = None
    if lexical is not None and len(lexical.field_weights) == 3:
        counts = count_rows(model.query_vocabulary, [["hash", "unseen_word", "hash"], ["list"]])
        rows = memory_rows(counts, (np.array([0, 1, 0]), np.array([7, 7, 12])), 120)
        fields = field_counts(
            model.query_vocabulary, model.encoder.view, model.encoder.analyzer, list(documents.values())
        )
        memory = QueryMemory.of(list(documents), rows, fields)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(model.query_vocabulary)).astype(np.float32)
    encoder = replace(model.encoder, lexical=lexical, memory=memory, short_lexical=None)
    has_short_rows = short_row_weight is not None
    if has_short_rows:
        pages = LexicalSettings("bm25", (4.0, 1.0), (1.0, 1.0), 1.5, (0.3, 0.8), (1.0, 7.0), "sqrt", 0.4, (6.0, 2.0))
        encoder = replace(encoder, lexical=pages, short_lexical=lexical)
    asked_before = None
    if lexical is not None:
        asked = "hash  TREE of an unseen_word tree" if lexical.form == "bm25" else "another query"
        asked_before = TrainingQueries.of(encoder.encoder_id[:32], [asked, "tree"], ["d1"])
    weights_of_words = None if lexical is None or has_short_rows else weights
    model = replace(
        model,
        encoder=encoder,
        word_weights=weights_of_words,
        training_queries=asked_before,
        short_row_weight=short_row_weight or 0.0,
    )
    if memory is not None:
        model = with_vectors(model)
        preferred = {"another": {"d7": 5.0}, query.upper(): {"d1": 1.0, "d7": -0.75, "ü": 2.0}}
        model = replace(model, repeated=RepeatedQueries.of("ab" * 16, preferred))
    save_model(model, tmp_path / "model")
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "model.md").read_text("utf-8"), re.DOTALL)
    document = documents["d7"] | {"text": "tree hash hash unseen_word about 7", "vector": [3.0, 0.5, -1.0]}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model"), query, "d7", json.dumps(document)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    queries, encoded = model.encode_queries([query]), model.encoder.encode([document], ["d7"])
    expected = float(queries.vectors[0] @ encoded.vectors[0]) + model.identity * float(
        queries.rows[0].multiply(encoded.rows[0]).sum()
    )
    expected += model.preferred(query).get("d7", 0.0)
    assert queries.vectors.any()
    printed = done.stdout.splitlines()
    if query == SHORT:
        impacts = Impacts(model, len(model.query_vocabulary)).of_documents(encoded.vectors, encoded.rows)
        recomputed = {int(word): value for word, value in json.loads(printed.pop()).items()}
        asked_words = model.encode_queries([query]).learned_rows.indices.tolist()
        assert set(asked_words) <= recomputed.keys()
        assert [recomputed[word] for word in asked_words] == pytest.approx(
            [float(impacts[0, word]) for word in asked_words], rel=1e-3, abs=1e-6
        )
    assert float(printed[0]) == pytest.approx(expected, abs=1e-6)
    assert printed[1:] == ([] if asked_before is None else [str(asked_before.have_texts([query])[0])])
