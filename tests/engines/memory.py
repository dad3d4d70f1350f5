"""An engine in memory: an inverted index with Lucene's BM25, for tests. Nothing is kept on disk.

Writes are visible at once, `refresh` does nothing. Scores follow Lucene as Elasticsearch and OpenSearch run it:
idf = ln(1 + (n - df + 0.5) / (df + 0.5)) over documents that have the field, and
2.2 · tf / (tf + 1.2 · (1 - 0.75 + 0.75 · length / mean length)), the length rounded as Lucene stores it in one byte.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from reranker.engines import language as tree
from reranker.engines.language import Extracted, FieldTable, Stored, standard_tokens
from reranker.engines.local import LocalEngine
from reranker.engines.protocol import Capabilities
from reranker.engines.tantivy import Change, Match
from reranker.errors import Unsupported

K1 = 1.2
B = 0.75
Scores = dict[int, float]
"""Place (number of the write) of a matching document → score."""


def stored_length(length: int) -> int:
    """Return a field length as Lucene keeps it: exact up to 40, then 4 significant bits (SmallFloat.intToByte4)."""
    if length < 40:
        return length
    shifted = length - 24
    drop = max(0, shifted.bit_length() - 4)
    return 24 + ((shifted >> drop) << drop)


class Postings:
    """The inverted index of one text field: word → place of a document → how often the document has the word."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.total_length = 0
        self._words: dict[str, dict[int, int]] = {}

    def add(self, place: int, texts: Sequence[str]) -> None:
        """Index the texts of one document."""
        counts = Counter(word for text in texts for word in standard_tokens(text))
        if not counts:
            return
        for word, times in counts.items():
            self._words.setdefault(word, {})[place] = times
        self.lengths[place] = stored_length(counts.total())
        self.total_length += counts.total()

    def remove(self, place: int, texts: Sequence[str]) -> None:
        """Take the texts of one document out again."""
        words = [word for text in texts for word in standard_tokens(text)]
        if not words:
            return
        for word in set(words):
            places = self._words[word]
            del places[place]
            if not places:
                del self._words[word]
        del self.lengths[place]
        self.total_length -= len(words)

    def places(self, word: str) -> Iterable[int]:
        """Return the places of the documents that hold a word."""
        return self._words.get(word, {})

    def score(self, node: tree.Words) -> Scores:
        """Return the BM25 scores of the documents with enough of the words."""
        mean = self.total_length / len(self.lengths) if self.lengths else 1.0
        scores: Scores = {}
        for word, times in node.words:
            places = self._words.get(word, {})
            weight = node.boost * times * self._idf(len(places)) * (K1 + 1)
            for place, frequency in places.items():
                norm = K1 * (1 - B + B * self.lengths[place] / mean)
                scores[place] = scores.get(place, 0.0) + weight * frequency / (frequency + norm)
        if node.minimum > 1:
            matched = Counter(place for word, times in node.words for place in self.places(word) for _ in range(times))
            scores = {place: score for place, score in scores.items() if matched[place] >= node.minimum}
        return scores

    def _idf(self, df: int) -> float:
        return math.log(1 + (len(self.lengths) - df + 0.5) / (df + 0.5))


def _has(extracted: Extracted, path: str) -> bool:
    """Return whether a field, or one inside it, has a value."""
    return any(name == path or name.startswith(f"{path}.") for name in (*extracted.texts, *extracted.exact))


class _MemoryIndex:
    """One index: documents by id, each at the place (number) of its last write."""

    def __init__(self, name: str, mapping: Mapping[str, Any], settings: dict[str, str]) -> None:
        self.name = name
        self.uuid = uuid.uuid4().hex
        self.settings = settings
        self._lock = threading.RLock()
        self._mapping = dict(mapping)
        self._table = FieldTable(mapping)
        self._states: dict[str, Stored] = {}
        self._places: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._extracted: dict[int, Extracted] = {}
        self._texts: dict[str, Postings] = {}
        self._exact: dict[str, dict[str, set[int]]] = {}
        self._next_seq_no = 0

    def mapping(self) -> dict[str, Any]:
        return self._mapping

    def table(self) -> FieldTable:
        return self._table

    def set_mapping(self, mapping: Mapping[str, Any]) -> None:
        with self._lock:
            self._mapping, self._table = dict(mapping), FieldTable(mapping)

    def writing(self) -> AbstractContextManager[Any]:
        return self._lock

    def next_seq_no(self) -> int:
        return self._next_seq_no

    def save(self, changes: Sequence[Change], mapping: Mapping[str, Any] | None) -> None:
        if mapping is not None:
            self.set_mapping(mapping)
        for state, extracted in changes:
            old = self._places.pop(state.id, None)
            if old is not None:
                self._unindex(old)
            self._states[state.id] = state
            self._next_seq_no = max(self._next_seq_no, state.seq_no + 1)
            if extracted is not None:
                self._index(state.seq_no, state.id, extracted)

    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        with self._lock:
            return {identifier: self._states[identifier] for identifier in ids if identifier in self._states}

    def stream(self, ids: Sequence[str] | None, batch_size: int) -> Iterator[list[Stored]]:
        with self._lock:
            order = [self._ids[place] for place in sorted(self._ids)] if ids is None else ids
            states = [self._states[identifier] for identifier in order if identifier in self._states]
        for start in range(0, len(states), batch_size):
            yield states[start : start + batch_size]

    def refresh(self) -> None:
        """Do nothing: writes are visible at once."""

    def find(self, node: tree.Node, limit: int | None) -> tuple[list[Match], int]:
        with self._lock:
            scores = self._evaluate(node)
            order = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
            best = order if limit is None else order[:limit]
            return [Match(self._ids[place], score, place) for place, score in best], len(order)

    def _index(self, place: int, identifier: str, extracted: Extracted) -> None:
        self._places[identifier] = place
        self._ids[place] = identifier
        self._extracted[place] = extracted
        for path, texts in extracted.texts.items():
            self._texts.setdefault(path, Postings()).add(place, texts)
        for path, values in extracted.exact.items():
            for value in values:
                self._exact.setdefault(path, {}).setdefault(value, set()).add(place)

    def _unindex(self, place: int) -> None:
        del self._ids[place]
        extracted = self._extracted.pop(place)
        for path, texts in extracted.texts.items():
            self._texts[path].remove(place, texts)
        for path, values in extracted.exact.items():
            for value in set(values):
                self._exact[path][value].discard(place)

    def _evaluate(self, node: tree.Node) -> Scores:
        match node:
            case tree.Words():
                postings = self._texts.get(node.field)
                return postings.score(node) if postings is not None else {}
            case tree.DisMax():
                return self._dis_max(node)
            case tree.Bool():
                return self._bool(node)
            case tree.MatchNone():
                return {}
            case tree.Weight():
                raise Unsupported("the engine in memory has no words with weights: use another engine", status=400)
            case _:
                return dict.fromkeys(self._constant(node), node.boost)

    def _constant(self, node: tree.MatchAll | tree.Ids | tree.Exact | tree.Exists) -> Iterable[int]:
        """Return the places that match a clause whose score is its boost."""
        match node:
            case tree.MatchAll():
                return self._ids
            case tree.Ids(ids):
                return {self._places[identifier] for identifier in ids if identifier in self._places}
            case tree.Exact(path, values) if path in self._texts:
                return {place for value in values for place in self._texts[path].places(value)}
            case tree.Exact(path, values):
                places = self._exact.get(path, {})
                return {place for value in values for place in places.get(value, ())}
            case tree.Exists(path):
                return {place for place, extracted in self._extracted.items() if _has(extracted, path)}

    def _dis_max(self, node: tree.DisMax) -> Scores:
        best: Scores = {}
        every: Scores = {}
        for child in node.children:
            for place, score in self._evaluate(child).items():
                best[place] = max(best.get(place, score), score)
                every[place] = every.get(place, 0.0) + score
        return {place: node.boost * (top + node.tie * (every[place] - top)) for place, top in best.items()}

    def _bool(self, node: tree.Bool) -> Scores:
        required = [self._evaluate(child) for child in node.must]
        filters = [self._evaluate(child) for child in node.filter]
        optional = [self._evaluate(child) for child in node.should]
        refused = {place for child in node.must_not for place in self._evaluate(child)}
        times = Counter(place for scores in optional for place in scores)
        if required or filters:
            kept = set.intersection(*(set(scores) for scores in required + filters))
        elif node.minimum > 0 or node.should:
            kept = set(times)
        else:
            kept = set(self._ids)
        kept = {place for place in kept - refused if times[place] >= node.minimum}
        scoring = required + optional
        return {place: node.boost * sum(scores.get(place, 0.0) for scores in scoring) for place in kept}


class _MemoryCatalogue:
    """Which indexes and aliases there are: what `reranker.engines.tantivy.TantivyCatalogue` is to a folder."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._indexes: dict[str, _MemoryIndex] = {}
        self._aliases: dict[str, set[str]] = {}

    def names(self) -> list[str]:
        return list(self._indexes)

    def aliases(self) -> dict[str, set[str]]:
        with self._lock:
            return {alias: set(names) for alias, names in self._aliases.items()}

    def open(self, name: str) -> _MemoryIndex:
        return self._indexes[name]

    def create(self, name: str, mapping: Mapping[str, Any], settings: dict[str, str]) -> None:
        with self._lock:
            self._indexes[name] = _MemoryIndex(name, mapping, settings)

    def delete(self, name: str) -> None:
        with self._lock:
            del self._indexes[name]
            left = {alias: names - {name} for alias, names in self._aliases.items()}
            self._aliases = {alias: names for alias, names in left.items() if names}

    def swap(self, alias: str, add: str, remove: Sequence[str]) -> None:
        with self._lock:
            self._aliases[alias] = (self._aliases.get(alias, set()) - set(remove)) | {add}

    def close(self) -> None:
        with self._lock:
            self._indexes.clear()
            self._aliases.clear()


def memory_engine() -> LocalEngine:
    """Return an empty engine in memory."""
    return LocalEngine("memory:", cast("Any", _MemoryCatalogue()), Capabilities("memory"))
