"""A small model of each kind, for tests of what is done with models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from reranker.kernels.packing import Quantisation
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import QueryMemory, memory_rows
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import count_rows, field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from tests.seeds import seeded_rng

DOCUMENTS: tuple[dict[str, Any], ...] = (
    {"title": "ash tree", "text": "A tall tree with winged seeds, and hard grey wood."},
    {"title": "oak tree", "text": "The tree of acorns: hard wood, slow growth, long life."},
    {"title": "ash (powder)", "text": "What a fire of wood leaves: a grey powder."},
    {"title": "garden fire", "text": "Burn dry leaves and wood in a garden; keep water at hand."},
    {"title": "", "text": ""},
    {"title": "pump P-4711x", "text": "Moves water uphill."},
)


BM25 = LexicalSettings("bm25", (2.0, 1.0), (0.5, 1.0), 1.5, (0.3, 0.8), (2.0, 7.0), "sqrt", 0.5)
"""Lexical settings for the fields title and text."""
MEMORY_BM25 = LexicalSettings(
    "bm25", (2.0, 1.0, 4.0), (0.5, 1.0, 0.0), 8.0, (0.3, 0.8, 0.1), (2.0, 7.0, 3.0), "sqrt", 0.5
)
"""The same with a memory of queries."""
GIVEN: tuple[list[float] | None, ...] = (
    [1.0, 0.0, 0.5, 0.0],
    [0.0, 1.0, 0.5, 0.0],
    [1.0, 0.5, -0.5, 0.25],
    None,
    [0.0, 0.0, 0.0, 0.0],
    [0.0, -1.0, 0.5, 1.0],
)
"""Vectors of DOCUMENTS; None and all zeros: the document has none."""
IDS = tuple(f"d{number}" for number in range(len(DOCUMENTS)))
REMEMBERED = {"lumber": ("d1", "d0"), "hard lumber board": ("d1",), "cinders fire": ("d2",), "impeller": ("d5",)}
"""Queries, and the ids of the documents they were judged relevant for."""


def small_vocabulary(max_words: int | None = 20) -> Vocabulary:
    """Return the vocabulary of DOCUMENTS."""
    builder = VocabularyBuilder()
    analyzer = make_analyzer(AnalyzerConfig())
    builder.add(analyzer.tokens([f"{one['title']} {one['text']}" for one in DOCUMENTS]))
    return builder.build(max_words)


def small_memory() -> QueryMemory:
    """Return the memory of REMEMBERED."""
    vocabulary, analyzer = small_vocabulary(), make_analyzer(AnalyzerConfig())
    queries = count_rows(vocabulary, analyzer.tokens(list(REMEMBERED)))
    pairs = [(q, IDS.index(document)) for q, documents in enumerate(REMEMBERED.values()) for document in documents]
    rows = memory_rows(queries, (np.array(pairs)[:, 0], np.array(pairs)[:, 1]), len(IDS))
    return QueryMemory.of(IDS, rows, field_counts(vocabulary, TextView.parse(["title", "text"]), analyzer, DOCUMENTS))


def small_table(n_words: int, n_dims: int = 3, offset: int = 0) -> np.ndarray:
    """Return a random float32 embedding table."""
    return seeded_rng(offset).normal(scale=0.3, size=(n_words, n_dims)).astype(np.float32)


def small_encoder(
    quantisation: Quantisation = "float16",
    n_dims: int = 3,
    n_rows: int | None = None,
    lexical: LexicalSettings | None = None,
    memory: QueryMemory | None = None,
) -> Encoder:
    """Return an encoder of DOCUMENTS' vocabulary with random V."""
    vocabulary = small_vocabulary()
    V = small_table(len(vocabulary) if n_rows is None else n_rows, n_dims)
    view = TextView.parse(["title^2", "text"])
    return Encoder(view, make_analyzer(AnalyzerConfig()), vocabulary, "log", V, quantisation, lexical, memory)


def small_model(seed: int = 1, n_dims: int = 3, **changes: Any) -> RankingModel:
    """Return a model over DOCUMENTS; ``seed`` changes U alone."""
    encoder = changes.pop("encoder", None) or small_encoder(n_dims=n_dims)
    parts: dict[str, Any] = {
        "encoder": encoder,
        "query_vocabulary": encoder.document_vocabulary,
        "U": small_table(len(encoder.V), encoder.V.shape[1], offset=100 + seed),
        "identity": 1.0,
        "training": {"seed": seed},
        "metrics": {"MAP": 0.5},
    }
    return RankingModel(**(parts | changes))


def with_given_vectors(model: RankingModel, weight: float = 0.8) -> RankingModel:
    """Return a model that also reads the field ``vector`` of documents, of 4 numbers of which 2 are kept."""
    axes = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    field = VectorField(np.array([0.5, 0.25, 0.25, 0.0], np.float32), axes, 1.25, 4 / 6)
    encoder = replace(model.encoder, view=replace(model.encoder.view, vector="vector"), vector_field=field)
    shared = model.has_shared_vocabulary
    words = WordEncoder(small_table(min(12, len(model.query_vocabulary)), 2, offset=7), weight)
    vocabulary = encoder.document_vocabulary if shared else model.query_vocabulary
    U = encoder.V if model.scorer.is_tied else model.U
    return replace(model, encoder=encoder, query_vocabulary=vocabulary, U=U, word_encoder=words)


def documents_with_vectors() -> list[dict[str, Any]]:
    """Return DOCUMENTS with their vectors GIVEN in the field ``vector``."""
    return [
        {**source, **({} if vector is None else {"vector": vector})}
        for source, vector in zip(DOCUMENTS, GIVEN, strict=True)
    ]
