"""Queries as pseudo-documents: the snippets of what BM25 finds for them, as a further view of the same queries.

Short texts made long by what a search engine finds for them (spec R04).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from papers.methods.lexical import fit_okapi
from papers.study import Texts, study_texts
from reranker.errors import ConfigError
from reranker.text.tfidf import Vocabulary

N_SNIPPETS = 100
"""Result snippets in a pseudo-document, at most."""


def snippet(tokens: Sequence[str], query: Collection[str], n_words: int = 30) -> tuple[str, ...]:
    """Return the ``n_words`` words in a row that hold the most different words of the query; of equals, the first.

    For engines that return documents and no snippets.

    Parameters
    ----------
    tokens : sequence of str
        The words of the document.
    query : collection of str
        The words of the query.
    n_words : int
        At least 1; a shorter document is returned whole.

    Raises
    ------
    ConfigError
        If no word is to be kept.
    """
    if n_words < 1:
        raise ConfigError(f"n_words is {n_words}: a snippet has at least 1 word")
    wanted = set(query)
    held: dict[str, int] = {}
    best, start = -1, 0
    for end, word in enumerate(tokens):
        if word in wanted:
            held[word] = held.get(word, 0) + 1
        gone = tokens[end - n_words] if end >= n_words else None
        if gone in held:
            held[gone] -= 1
            if not held[gone]:
                del held[gone]
        if end >= min(n_words, len(tokens)) - 1 and len(held) > best:
            best, start = len(held), max(0, end - n_words + 1)
    return tuple(tokens[start : start + n_words])


PSEUDO = "pseudo-documents"
"""Name of the view: tf-idf rows of the snippets together."""
_BLOCK = 256


def with_pseudo_documents(
    queries: Texts,
    query_tokens: Sequence[Sequence[str]],
    documents: Texts,
    document_tokens: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
    n_snippets: int = N_SNIPPETS,
) -> Texts:
    """Return the queries with the view `PSEUDO`: snippets of their best documents by BM25, 30 words each.

    Documents that share no word with a query are none of its results. Nothing is known of judgements.

    Parameters
    ----------
    queries, documents : Texts
        Over the vocabulary.
    query_tokens, document_tokens : sequences of sequences of str
        Their words in order, of which snippets are cut.
    n_snippets : int
        Results a query, at most.

    Source: S2Net, advertisements; spec 1.5, R04.
    """
    okapi = fit_okapi(documents.counts)
    texts: list[list[str]] = []
    for start in range(0, len(queries), _BLOCK):
        scores = okapi.score_matrix(queries.counts[start : start + _BLOCK], documents.counts)
        for row, line in enumerate(scores, start):
            best = np.argsort(-line, kind="stable")[:n_snippets]
            words = query_tokens[row]
            cuts = [snippet(document_tokens[document], words) for document in best[line[best] > 0].tolist()]
            texts.append([word for cut in cuts for word in cut])
    return replace(queries, more={**queries.more, PSEUDO: study_texts(texts, vocabulary, documents.idf).rows})
