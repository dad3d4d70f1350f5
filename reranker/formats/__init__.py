"""Input files to records, as streams: documents, links, queries, judgements, pairs; every bad line told, none fatal.

All readers take a plain or gzipped file (told by its content, not its name) of any size and hold one line at a time.
A line that breaks a rule goes to the `RejectSink` with its number, byte offset and reason; with no sink the first one
raises `reranker.errors.InputError`. A file that cannot be read at all, or that ends inside its gzip stream, always
raises it, after the records before the damage have been yielded.
"""

from __future__ import annotations

from reranker.formats.documents import (
    MAX_DOCUMENT_BYTES,
    DocumentLine,
    Judgement,
    Link,
    Query,
    SeenIds,
    check_id,
    read_documents,
    read_ids,
    read_links,
    read_pairs,
    read_qrels,
    read_queries,
)
from reranker.formats.lines import (
    MAX_DEPTH,
    MAX_LINE_BYTES,
    Line,
    RecordError,
    RejectLog,
    RejectSink,
    parse_json,
    read_lines,
    read_records,
)

__all__ = [
    "MAX_DEPTH", "MAX_DOCUMENT_BYTES", "MAX_LINE_BYTES", "DocumentLine", "Judgement",
    "Line", "Link", "Query", "RecordError", "RejectLog", "RejectSink", "SeenIds", "check_id", "parse_json",
    "read_documents", "read_ids", "read_lines", "read_links", "read_pairs", "read_qrels", "read_queries",
    "read_records",
]  # fmt: skip
