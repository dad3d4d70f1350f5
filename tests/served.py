"""A small index with a model over it: documents in an engine with the fields of fetch, and the same in a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.engines.protocol import Engine, WriteOp
from reranker.engines.vectors import FieldWriter, version_fields
from reranker.kernels.packing import Quantisation
from reranker.lexical.bm25 import LexicalSettings
from reranker.lexical.memory import QueryMemory, memory_rows
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.vector_field import VectorField, WordEncoder
from reranker.store import StoreWriter, VectorStore
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.text.tfidf import count_rows, field_counts
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder
from tests.seeds import seeded_rng

Documents = dict[str, dict[str, Any]]
BM25 = LexicalSettings("bm25", (2.0, 1.0), (0.5, 1.0), 1.5, (0.3, 0.8), (2.0, 16.0), "sqrt", 0.5)
"""Lexical settings for the fields title and text of `random_documents`."""
MEMORY_BM25 = LexicalSettings(
    "bm25", (2.0, 1.0, 3.0), (0.5, 1.0, 0.0), 6.0, (0.3, 0.8, 0.2), (2.0, 16.0, 2.0), "sqrt", 0.5
)
"""The same with a memory of queries, that of REMEMBERED."""
REMEMBERED = {"word0 neverseen9": ("d1", "d5", "d8"), "word11 word2": ("d5",), "lumber": ("d3",)}
"""Queries, and the documents that they were judged relevant for; two of the words stand in no document."""
TEXT_FIELDS = {"title": {"type": "text"}, "text": {"type": "text"}, "tag": {"type": "keyword"}}


def random_documents(n: int, n_words: int = 60, seed: int = 0) -> Documents:
    """Return documents of random words with a few frequent ones, ids ``d0``, ``d1``, ..."""
    rng = seeded_rng(seed)
    chances = 1.0 / np.arange(1, n_words + 1)
    chances /= chances.sum()
    words = np.array([f"word{i}" for i in range(n_words)])
    return {
        f"d{i}": {
            "title": " ".join(rng.choice(words, size=rng.integers(1, 4), p=chances)),
            "text": " ".join(rng.choice(words, size=rng.integers(3, 30), p=chances)),
            "tag": str(rng.choice(["x", "y"])),
        }
        for i in range(n)
    }


N_GIVEN = 5
"""Numbers of a vector of `with_vectors`."""


def with_vectors(documents: Mapping[str, Mapping[str, Any]], seed: int = 3) -> Documents:
    """Return the documents with a random vector each in the field ``embedding``; every seventh has none."""
    rng = seeded_rng(seed)
    vectors = {name: rng.normal(size=N_GIVEN).round(4).tolist() for name in documents}
    return {
        name: {**source, **({} if place % 7 == 6 else {"embedding": vectors[name]})}
        for place, (name, source) in enumerate(documents.items())
    }


def reading_vectors(model: RankingModel, seed: int = 5) -> RankingModel:
    """Return a model that also reads the field ``embedding`` of documents, of `N_GIVEN` numbers of which 4 are kept."""
    rng = seeded_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(N_GIVEN, 4)))[0]
    field = VectorField(np.full(N_GIVEN, 0.1, np.float32), np.ascontiguousarray(axes, np.float32), 3.0, 6 / 7)
    encoder = replace(model.encoder, view=replace(model.encoder.view, vector="embedding"), vector_field=field)
    words = rng.normal(size=(len(model.query_vocabulary) - 5, 4)).astype(np.float32)  # rare words have no vector
    return replace(model, encoder=encoder, word_encoder=WordEncoder(words, 0.4))


def model_of(
    documents: Mapping[str, Mapping[str, Any]],
    *,
    n_dims: int = 8,
    scale: float = 0.3,
    max_words: int | None = None,
    quantisation: Quantisation = "float16",
    seed: int = 1,
    lexical: LexicalSettings | None = None,
    stemmer: str | None = None,
) -> RankingModel:
    """Return a model over the documents' words whose learned part is random: right for parity, useless for quality."""
    analyzer = make_analyzer(AnalyzerConfig(stemmer=stemmer))
    builder = VocabularyBuilder()
    builder.add(analyzer.tokens([f"{one.get('title', '')} {one.get('text', '')}" for one in documents.values()]))
    vocabulary = builder.build(max_words)
    rng = seeded_rng(seed)
    U, V = rng.normal(scale=scale, size=(2, len(vocabulary), n_dims)).astype(np.float32)
    view = TextView.parse(["title^2", "text"])
    memory = None
    if lexical is not None and len(lexical.field_weights) > len(view.fields):
        memory = _memory(vocabulary, documents, field_counts(vocabulary, view, analyzer, list(documents.values())))
    encoder = Encoder(view, analyzer, vocabulary, "log", np.ascontiguousarray(V), quantisation, lexical, memory)
    return RankingModel(
        encoder=encoder,
        query_vocabulary=vocabulary,
        U=np.ascontiguousarray(U),
        identity=1.0,
        training={},
        metrics={},
    )


def with_mean_vector(model: RankingModel, documents: Mapping[str, Mapping[str, Any]]) -> RankingModel:
    """Return a model that impacts of these documents can be computed with."""
    vectors = model.encoder.encode(list(documents.values()), list(documents)).vectors
    return replace(model, mean_vector=np.asarray(vectors.mean(axis=0), np.float32))


def _memory(vocabulary: Vocabulary, ids: Iterable[str], fields: Sequence[sp.csr_matrix]) -> QueryMemory:
    """Return the memory of REMEMBERED."""
    ids = list(ids)
    pairs = [(q, ids.index(document)) for q, named in enumerate(REMEMBERED.values()) for document in named]
    queries, documents = np.array(pairs).T
    counts = count_rows(vocabulary, [query.split() for query in REMEMBERED])
    return QueryMemory.of(ids, memory_rows(counts, (queries, documents), len(ids)), fields)


@dataclass(frozen=True)
class Served:
    """An index and what serves it."""

    engine: Engine
    index: str
    model: RankingModel
    documents: Documents
    store_path: Path
    routes: tuple[str, ...] = ("fetch",)

    @property
    def store(self) -> VectorStore:
        """The store as it is now."""
        return VectorStore.open(self.store_path, self.model.encoder_id)

    def put(self, documents: Mapping[str, Mapping[str, Any]], *, vectors: bool = True) -> None:
        """Write documents, with their vectors in index and store or without."""
        encoded = self.model.encoder.encode(list(documents.values()), list(documents))
        parts = (list(documents), encoded.vectors, encoded.rows, encoded.source_hashes, encoded.has_text)
        encoder, with_ids = self.model.encoder, self.engine.capabilities().doc_value_hits
        head = (self.model.encoder_id, encoder.quantisation, self.routes)
        writer = FieldWriter(*head, with_ids=with_ids)
        fields: Sequence[dict[str, Any]] = list(writer.fields(*parts)) if vectors else [{}] * len(documents)
        ops = [
            WriteOp("index", name, {**source, **extra})
            for (name, source), extra in zip(documents.items(), fields, strict=True)
        ]
        results = self.engine.bulk(self.index, ops)
        assert all(result.status in (200, 201) for result in results), results
        self.engine.refresh(self.index)
        if vectors:
            with StoreWriter(
                self.store_path,
                self.model.encoder_id,
                self.model.encoder.n_dims,
                quantisation=self.model.encoder.quantisation,
            ) as store:
                there = np.flatnonzero(encoded.has_text)
                names = list(documents)
                store.add(
                    [names[place] for place in there],
                    encoded.vectors[there],
                    encoded.rows[there],
                    [encoded.source_hashes[place] for place in there],
                )


def serve(
    engine: Engine,
    index: str,
    path: Path,
    documents: Documents,
    model: RankingModel,
    routes: tuple[str, ...] = ("fetch",),
    *,
    properties: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Served:
    """Create the index, with further properties, and put all documents into index and store."""
    fields = version_fields(model.encoder_id, engine.capabilities(), routes)
    engine.create_index(index, {"properties": {**TEXT_FIELDS, **fields, **(properties or {})}}, settings or None)
    served = Served(engine, index, model, documents, path / f"{index}-store", routes)
    served.put(documents)
    return served


SIGNAL_FIELDS = {
    "votes": {"type": "long"},
    "price": {"type": "double"},
    "released": {"type": "date"},
    "shop": {"properties": {"stock": {"type": "boolean"}}},
}


def with_numbers(documents: Documents, seed: int = 7) -> Documents:
    """Return the documents with values of SIGNAL_FIELDS: ties, outliers, negative ones, several, and none."""
    rng = seeded_rng(seed)
    numbered = {}
    for place, (name, source) in enumerate(documents.items()):
        day = f"20{rng.integers(0, 25):02d}-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}T10:00:00Z"
        numbers: dict[str, Any] = {
            "votes": int(rng.integers(0, 4)),
            "price": float(rng.normal(0.0, 50.0)),
            "released": day,
            "shop": {"stock": bool(rng.integers(0, 2))},
        }
        if place % 10 == 0:
            numbers |= {"price": [9e12, -3.5], "votes": 10**15}
        if place % 7 == 0:
            numbers = {"votes": numbers["votes"]}
        numbered[name] = {**source, **numbers}
    return numbered
