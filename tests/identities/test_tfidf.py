"""tf-idf against a second formula: scikit-learn's vectoriser, where both are defined alike."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from reranker.text.tfidf import TfIdf
from reranker.text.vocabulary import VocabularyBuilder
from tests.engines.policy import library
from tests.seeds import seeded_rng


@pytest.mark.parametrize("tf", ["raw", "log"])
def test_rows_equal_those_of_scikit_learn(tf: str) -> None:
    text = library("sklearn.feature_extraction.text")
    rng = seeded_rng()
    documents = [[f"w{rank}" for rank in rng.zipf(1.5, n).tolist()] for n in rng.integers(0, 60, 200)]
    builder = VocabularyBuilder()
    builder.add(documents)
    vocabulary = builder.build()

    # scikit-learn's idf is ln(N / df) + 1; the idf that ours has is set by hand.
    counts = csr_matrix(text.CountVectorizer(analyzer=list, vocabulary=vocabulary.words).fit_transform(documents))
    transformer = text.TfidfTransformer(norm="l2", smooth_idf=False, sublinear_tf=tf == "log").fit(counts)
    transformer.idf_ = np.log(len(documents) / vocabulary.document_frequency)
    expected = transformer.transform(counts)

    rows = TfIdf(vocabulary, tf).rows(documents)
    ours = csr_matrix((rows.data, rows.indices, rows.indptr), shape=expected.shape)
    np.testing.assert_allclose(ours.toarray(), expected.toarray(), atol=1e-6)
