"""What a retraining learns from beside the clicks, and the judged queries that the gate keeps for itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reranker.formats import RejectSink, read_links, read_qrels, read_queries
from reranker.training import Evidence, from_judgements, from_links


@dataclass(frozen=True)
class Teaching:
    """Evidence beside the clicks.

    Parameters
    ----------
    evidence : tuple of Evidence
        Of links, and of half of the judged queries.
    judged : mapping of query text to mapping of document id to grade
        The other half: for the gate, never learned from.
    """

    evidence: tuple[Evidence, ...] = ()
    judged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def preferences(self) -> int:
        """Number of preferences to learn from."""
        return sum(len(one.preferences) for one in self.evidence)


def read_teaching(
    links: Path | None = None,
    judgements: Path | None = None,
    queries: Path | None = None,
    rejects: RejectSink | None = None,
) -> Teaching:
    """Return what the files of links and of judged queries say.

    Judged queries are parted by a hash of their text: the same ones are kept for the gate in every retraining. There,
    queries of one text are one; where two grade the same document, the first one's grade holds.
    """
    evidence = []
    judged: dict[str, dict[str, float]] = {}
    if links is not None:
        evidence.append(from_links(read_links(links, rejects=rejects)))
    if judgements is not None and queries is not None:
        texts = {query.id: " ".join(query.text.split()) for query in read_queries(queries, rejects=rejects)}
        grades: dict[str, dict[str, float]] = {}
        for one in read_qrels(judgements, rejects=rejects):
            if one.query_id in texts:
                grades.setdefault(one.query_id, {})[one.document_id] = one.grade
        learned = {query: values for query, values in grades.items() if not is_for_the_gate(texts[query])}
        evidence.append(from_judgements(learned, texts))
        for query, values in grades.items():
            if query not in learned:
                judged[texts[query]] = {**values, **judged.get(texts[query], {})}
        judged = {text: values for text, values in judged.items() if any(grade > 0 for grade in values.values())}
    return Teaching(tuple(one for one in evidence if one.preferences), judged)


def is_for_the_gate(text: str) -> bool:
    """Return whether a judged query is kept for the gate: half of all texts are, spelling of letters aside."""
    return bool(hashlib.blake2b(text.lower().encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] & 1)
