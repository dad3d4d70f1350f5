"""What a model has learned about words: which are near each other, which it relates to a query, and a picture."""

from __future__ import annotations

from reranker.words.neighbours import Neighbour, RelatedWord, related_words, similar_words

__all__ = ["Neighbour", "RelatedWord", "related_words", "similar_words"]
