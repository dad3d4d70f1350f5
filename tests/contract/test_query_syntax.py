"""Words that a query with a syntax asks for are those of the query that the engine makes of it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from reranker.engines import open_engine
from reranker.engines.query_syntax import UnreadableQueryError, asked_text
from reranker.errors import EngineRejected
from reranker.rerank import Reranker, RerankSettings
from tests.seeds import seeded_rng
from tests.served import Served, model_of, serve

PARTS = (
    "red",
    "boot",
    "hat",
    " ",
    " ",
    " ",
    "-",
    "+",
    "(",
    ")",
    '"',
    "|",
    " hat~1 ",
    "*",
    "\\\\",
    "!",
    " NOT ",
    " AND ",
)
DOCUMENTS = {
    "x1": {"title": "boot", "text": "boot boot boot leather"},
    "x2": {"title": "red hat", "text": "a red hat of wool"},
    "x3": {"title": "red boot", "text": "a red boot"},
    **{f"y{n}": {"title": "red", "text": f"red thing number{n}"} for n in range(9)},
}


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")) as engine:
        index = f"syntax-{uuid.uuid4().hex[:10]}"
        try:
            yield serve(engine, index, tmp_path_factory.mktemp("syntax"), DOCUMENTS, model_of(DOCUMENTS, scale=0.01))
        finally:
            engine.delete_index(index)


def engine_words(engine: Any, index: str, clause: str, query: str) -> list[str] | None:
    """Return the words that the engine's own query asks for, sorted; None if the engine refuses the query."""
    body = {"query": {clause: {"query": query, "fields": ["text"]}}}
    told = engine.request("POST", f"/{index}/_validate/query", body, {"explain": "true"})["explanations"][0]
    if "error" in told:
        return None
    found: list[str] = []
    negated, minus = [False], False
    for token in re.findall(r'-|\(|\)|text:"[^"]*"|text:[\w*]+|\*:\*|\S', told["explanation"]):
        if token == "(":
            negated.append(negated[-1] or minus)
        elif token == ")":
            negated.pop()
        elif token.startswith("text:") and not (minus or negated[-1] or "*" in token or "Automaton" in token):
            found += re.findall(r"\w+", token.removeprefix("text:"))
        minus = token == "-"
    return sorted(set(found))


@pytest.mark.parametrize("clause", ["simple_query_string", "query_string"])
def test_words_are_those_of_the_engines_query(served: Served, clause: str) -> None:
    rng, n_read = seeded_rng(5), 0
    template = {"query": {clause: {"query": "{{query}}"}}}
    for _ in range(300):
        # A boost is a part of a word for `simple_query_string`, whose distances are of words without analysis.
        parts = (*PARTS, "^2") if clause == "query_string" else PARTS
        query = "".join(rng.choice(parts, size=rng.integers(1, 9)))
        expected = engine_words(served.engine, served.index, clause, query)
        try:
            asked = asked_text(template, query, "{{query}}")
        except UnreadableQueryError:
            continue
        n_read += 1
        if expected is not None:
            words = {word.lower() for word in re.findall(r"\w+", asked)}
            assert sorted(words) == expected, query
    assert n_read > 80


@pytest.mark.parametrize("clause", ["simple_query_string", "query_string"])
def test_a_negated_word_raises_no_document(served: Served, clause: str) -> None:
    body = {"query": {clause: {"query": "{{query}}", "fields": ["title", "text"], "default_operator": "or"}}}
    settings = RerankSettings(window=30, deadline_ms=None, alpha=1.0)
    reranker = Reranker(served.engine, served.index, served.model, settings=settings)
    page = reranker.search("red -boot", body, size=20)
    assert page.reranked
    plain = reranker.search("red", {"query": {"match": {"text": "{{query}}"}}}, size=20)
    scores = {hit.id: hit.model_score for hit in plain.hits}
    assert all(hit.model_score == scores.get(hit.id, hit.model_score) for hit in page.hits)
    if clause == "simple_query_string":  # by the operator OR, it also finds what has neither word
        assert "x1" not in {hit.id for hit in page.hits[:5]}
    unread = reranker.search("-boot", body, size=20)
    assert not unread.reranked and not unread.fallback and unread.cause == "not_rerankable"
    if clause == "query_string":
        with pytest.raises(EngineRejected):
            reranker.search("red (boot", body)
