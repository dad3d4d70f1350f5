"""Queries as pseudo-documents: the snippets of what BM25 finds for them, as a further view of the same queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from papers.okapi import fit_okapi
from papers.pseudo_documents import N_SNIPPETS, snippet
from papers.study import Texts, study_texts
from reranker.text.vocabulary import Vocabulary

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
    vocabulary : Vocabulary
    n_snippets : int
        Results a query, at most.

    Source: S2Net, advertisements; spec 1.5, R04.
    """
    okapi = fit_okapi(documents.counts)
    found: list[list[str]] = []
    for start in range(0, len(queries), _BLOCK):
        scores = okapi.score_matrix(queries.counts[start : start + _BLOCK], documents.counts)
        for row, line in enumerate(scores, start):
            best = np.argsort(-line, kind="stable")[:n_snippets]
            words = query_tokens[row]
            cuts = [snippet(document_tokens[one], words) for one in best[line[best] > 0].tolist()]
            found.append([word for cut in cuts for word in cut])
    return replace(queries, more={**queries.more, PSEUDO: study_texts(found, vocabulary, documents.idf).rows})
