"""The store of route *beside*: vectors and tf-idf rows by document id, memory-mapped beside the reranker."""

from __future__ import annotations

from reranker.store.reader import VectorStore
from reranker.store.writer import StoreWriter

__all__ = ["StoreWriter", "VectorStore"]
