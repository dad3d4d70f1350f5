"""Search bodies with the field weights of a model."""

from __future__ import annotations

from dataclasses import replace

from reranker.lexical.bm25 import LexicalSettings
from reranker.rerank.weighted_template import weighted_template
from tests.served import BM25, MEMORY_BM25, model_of, random_documents


def test_the_field_weights_of_the_lexical_score_become_a_body() -> None:
    documents = random_documents(200)
    assert weighted_template(model_of(documents).encoder) is None, "no tuned lexical score"
    encoder = model_of(documents, lexical=BM25).encoder
    text, fields = "{{query}}", ["title^2", "text"]
    multi_match = {"multi_match": {"query": text, "fields": fields, "type": "cross_fields"}}
    assert weighted_template(encoder) == {"query": multi_match}
    combined = {"query": {"combined_fields": {"query": text, "fields": fields}}}
    assert weighted_template(encoder, kind="combined_fields") == combined
    boost = (2.5 * 2.0 / 3.5) / (2.5 * 1.0 / 2.5)  # of one word at mean length, k1 = 1.5
    summed = {"multi_match": {"query": text, "fields": [f"title^{boost:.3g}", "text"], "type": "most_fields"}}
    assert weighted_template(encoder, kind="most_fields") == {"query": summed}
    clauses = {"filter": [{"term": {"tag": "x"}}], "must_not": {"term": {"tag": "y"}}}
    like = {"query": {"bool": {"must": {"match": {"text": "{{query}}"}}, **clauses}}}
    assert weighted_template(encoder, like) == {"query": {"bool": {"must": [multi_match], **clauses}}}
    remembered = model_of(documents, lexical=MEMORY_BM25).encoder
    assert "['title^2', 'text']" in str(weighted_template(remembered)), "the memory has no field in the engine"
    tfidf = model_of(documents, lexical=LexicalSettings("tfidf", (0.0, 2.0), (1.0, 1.0))).encoder
    assert weighted_template(tfidf) == {"query": {"match": {"text": {"query": "{{query}}"}}}}
    only_memory = replace(MEMORY_BM25, field_weights=(0.0, 0.0, 1.0))
    assert weighted_template(model_of(documents, lexical=only_memory).encoder) is None
