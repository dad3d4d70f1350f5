r"""The search half of an embedded index: a tantivy index on disk and the query tree turned into tantivy's queries.

Text fields are numbered slots, so that a new field needs no new tantivy index. Words are made by
`reranker.engines.standard` and handed over joined by spaces: the embedded engines and `analyze` agree on every word.
Whole values live in one field as ``path\0value``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reranker.engines import query_tree as tree
from reranker.engines.local_base import Found
from reranker.engines.mapping import Extracted
from reranker.engines.standard import standard_tokens
from reranker.errors import MissingExtra

WRITER_BYTES = 64_000_000
"""Memory of the index writer before it writes a segment."""
_TOKENIZER = "ssi_words"
_MOST_TIES = 10_000
"""How far past the wanted hits equal scores are followed to order them by age."""


def load_tantivy() -> Any:
    """Return the tantivy module."""
    try:
        import tantivy
    except ImportError:
        raise MissingExtra("tantivy", "all") from None
    return tantivy


class SearchIndex:
    """One tantivy index in a folder, with ``capacity`` slots for text fields."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self._tantivy = load_tantivy()
        self.capacity = capacity
        self._schema = self._make_schema(capacity)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._index = self._open(folder)
        except ValueError:
            # Damaged, or made by another version of tantivy: it is only a copy of the documents.
            shutil.rmtree(folder)
            folder.mkdir()
            self._index = self._open(folder)

    def _open(self, folder: Path) -> Any:
        index = self._tantivy.Index(self._schema, path=str(folder))
        words = self._tantivy.TextAnalyzerBuilder(self._tantivy.Tokenizer.whitespace()).build()
        index.register_tokenizer(_TOKENIZER, words)
        return index

    def _make_schema(self, capacity: int) -> Any:
        builder = self._tantivy.SchemaBuilder()
        builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_unsigned_field("seq_no", indexed=False, fast=True)
        builder.add_text_field("exact", tokenizer_name="raw", index_option="basic")
        builder.add_text_field("has", tokenizer_name="raw", index_option="basic")
        for slot in range(capacity):
            builder.add_text_field(f"text{slot}", tokenizer_name=_TOKENIZER, index_option="freq")
        return builder.build()

    def n_documents(self) -> int:
        """Return how many documents are searchable."""
        return int(self._index.searcher().num_docs)

    def reload(self) -> None:
        """See what was committed since, also by another process."""
        self._index.reload()

    def writer(self) -> Writer:
        """Return a writer; there can be one at a time."""
        # One thread: segments then hold documents in order of writing, so that runs repeat exactly.
        return Writer(self._tantivy, self._index.writer(WRITER_BYTES, 1))

    def find(self, node: tree.Node, limit: int | None, slots: Mapping[str, int]) -> tuple[list[Found], int]:
        """Return the best matches by (-score, age of the last write), and the number of all."""
        query = _Queries(self._tantivy, self._schema, slots).make(node)
        searcher = self._index.searcher()
        wanted = searcher.num_docs if limit is None else min(limit, searcher.num_docs)
        if _is_constant(node):
            # All scores are equal, so the order is by age, and tantivy can sort by that itself.
            order = self._tantivy.Order.Asc
            result = searcher.search(query, max(1, wanted), order_by_field="seq_no", order=order)
            score = _constant_score(node)
            hits = [(score, address) for _, address in result.hits]
        else:
            result = _search_past_ties(searcher, query, wanted)
            hits = result.hits
        places = searcher.fast_field_values("seq_no", [address for _, address in hits]) if hits else []
        ranks = sorted(range(len(hits)), key=lambda rank: (-hits[rank][0], places[rank]))[:wanted]
        found = [
            Found(searcher.doc(hits[rank][1]).get_first("id"), float(hits[rank][0]), int(places[rank]))
            for rank in ranks
        ]
        return found, int(result.count)


def _search_past_ties(searcher: Any, query: Any, wanted: int) -> Any:
    """Return a result that holds, past the hits wanted, all others with the score of the last of them.

    tantivy orders equal scores by place in its segments, which merges change; the caller orders them by age.
    """
    n = wanted + 1
    while True:
        result = searcher.search(query, n)
        hits = result.hits
        open_end = len(hits) == n and wanted > 0 and hits[-1][0] == hits[wanted - 1][0]
        if not open_end or n >= _MOST_TIES:
            return result
        n *= 4


def _is_constant(node: tree.Node) -> bool:
    if isinstance(node, tree.Bool):
        return not node.must and (not node.should) and node.minimum == 0
    return isinstance(node, (tree.MatchAll, tree.Exact, tree.Ids, tree.Exists, tree.MatchNone))


def _constant_score(node: tree.Node) -> float:
    return 0.0 if isinstance(node, (tree.Bool, tree.MatchNone)) else float(getattr(node, "boost", 0.0))


class Writer:
    """Replaces documents in a tantivy index; nothing is visible before `commit`."""

    def __init__(self, tantivy: Any, writer: Any) -> None:
        self._tantivy = tantivy
        self._writer = writer

    def delete(self, identifier: str) -> None:
        """Take a document out."""
        self._writer.delete_documents_by_term("id", identifier)

    def add(self, identifier: str, seq_no: int, extracted: Extracted, slots: Mapping[str, int]) -> None:
        """Put a document in."""
        document = self._tantivy.Document()
        document.add_text("id", identifier)
        document.add_unsigned("seq_no", seq_no)
        for path, values in extracted.exact.items():
            for value in dict.fromkeys(values):
                document.add_text("exact", f"{path}\0{value}")
        for path in _with_parents((*extracted.texts, *extracted.exact)):
            document.add_text("has", path)
        for path, texts in extracted.texts.items():
            words = " ".join(word for text in texts for word in standard_tokens(text))
            if path in slots and words:
                document.add_text(f"text{slots[path]}", words)
        self._writer.add_document(document)

    def commit(self) -> None:
        """Make all changes durable and visible, and wait for merges."""
        self._writer.commit()
        self._writer.wait_merging_threads()


def _with_parents(paths: Sequence[str]) -> dict[str, None]:
    """Return the paths and all objects they lie in: ``a.b`` exists wherever ``a.b.c`` has a value."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split(".")
        found |= {".".join(parts[: length + 1]): None for length in range(len(parts))}
    return found


class _Queries:
    """Makes tantivy's queries of the tree."""

    def __init__(self, tantivy: Any, schema: Any, slots: Mapping[str, int]) -> None:
        self._query = tantivy.Query
        self._occur = tantivy.Occur
        self._schema = schema
        self._slots = slots

    def make(self, node: tree.Node) -> Any:
        """Return the query of a node."""
        match node:
            case tree.Words():
                return self._words(node)
            case tree.DisMax(children, tie, boost):
                best = self._query.disjunction_max_query([self.make(child) for child in children], tie)
                return self._query.boost_query(best, boost)
            case tree.Bool():
                return self._bool(node)
            case tree.MatchNone():
                return self._query.empty_query()
            case _:
                return self._query.const_score_query(self._filter(node), node.boost)

    def _filter(self, node: tree.MatchAll | tree.Exact | tree.Ids | tree.Exists) -> Any:
        match node:
            case tree.MatchAll():
                return self._query.all_query()
            case tree.Ids(ids):
                return self._any_of("id", ids)
            case tree.Exists(path):
                return self._any_of("has", (path,))
            case tree.Exact(path, values) if path in self._slots:
                return self._any_of(f"text{self._slots[path]}", values)
            case tree.Exact(path, values):
                return self._any_of("exact", tuple(f"{path}\0{value}" for value in values))

    def _any_of(self, field: str, values: Sequence[str]) -> Any:
        if not values:
            return self._query.empty_query()
        return self._query.term_set_query(self._schema, field, list(values))

    def _words(self, node: tree.Words) -> Any:
        slot = self._slots.get(node.field)
        if slot is None:
            return self._query.empty_query()
        terms = [
            (self._occur.Should, self._query.term_query(self._schema, f"text{slot}", word, "freq"))
            for word, times in node.words
            for _ in range(times)
        ]
        if node.minimum > len(terms):
            return self._query.empty_query()
        return self._query.boost_query(self._query.boolean_query(terms, node.minimum), node.boost)

    def _bool(self, node: tree.Bool) -> Any:
        if node.minimum > len(node.should):
            return self._query.empty_query()
        must, should, never = self._occur.Must, self._occur.Should, self._occur.MustNot
        clauses = [(must, self.make(child)) for child in node.must]
        clauses += [(must, self._query.const_score_query(self.make(child), 0.0)) for child in node.filter]
        if not clauses and (node.minimum == 0 and not node.should):
            clauses = [(must, self._query.const_score_query(self._query.all_query(), 0.0))]
        clauses += [(should, self.make(child)) for child in node.should]
        clauses += [(never, self.make(child)) for child in node.must_not]
        least = node.minimum or int(not node.must and not node.filter and bool(node.should))
        return self._query.boost_query(self._query.boolean_query(clauses, least), node.boost)
