"""Checks before the first write to somebody else's index: reasons for refusing it, and the cost of writing.

To add fields to a stored document, the engine writes the whole document again from its ``_source``. If the ``_source``
is not the document that its owner sent, or if a write has side effects, `preflight` refuses the index with a remedy. It
also refuses a model none of whose fields the documents have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from indexer.encoding import VersionEncoder
from indexer.suitability import (
    SAMPLE,
    TextSample,
    document_has_text,
    impacts_note,
    text_notes,
    text_reasons,
    vector_notes,
)
from reranker.engines.given_field import given_field_problem
from reranker.engines.protocol import DiskUsage, Engine, IndexInfo, ReportsDisk
from reranker.engines.vectors import FIELD_PREFIX
from reranker.engines.wire import json_bytes
from reranker.errors import EngineAuthError, EngineRejected, PreflightRefused
from reranker.records import StoredDocument
from reranker.text.view import paths_of

MIN_FREE_SHARE = 0.10
"""Share of a disk that must stay free, because engines stop allocating shards at 10 % and block writes at 5 %."""


DEFAULT_FIELD_LIMIT = 1000


_FALSE = (False, "false")


PIPELINES = ("index.default_pipeline", "index.final_pipeline")


_BLOCKS = ("index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete")


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan for revectorizing an index."""

    index: str
    concrete: tuple[str, ...]
    """Indexes behind the name."""
    documents: int
    """Number of documents in them; each is rewritten once."""
    added_bytes: int
    """JSON bytes that the new fields add, estimated from a sample."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Mapping properties that are added."""
    reasons: tuple[str, ...] = ()
    """Reasons for refusing; empty if there are none."""
    notes: tuple[str, ...] = ()
    """Notes for the user that do not prevent writing."""
    text_notes: tuple[str, ...] = ()
    """Those of the notes that concern the fit of the model to the texts."""

    def check(self) -> None:
        """Raise `PreflightRefused` if there is a reason for refusing."""
        if self.reasons:
            raise PreflightRefused(self.index, self.reasons)


def preflight(engine: Engine, index: str, version: VersionEncoder) -> Plan:
    """Return the plan for writing a version's fields into an index; nothing is written.

    Raises
    ------
    EngineRejected
        If the index does not exist.
    Unsupported
        If the engine does not support a field type of the requested routes.
    """
    names = engine.index_names(index)
    if not names:
        raise EngineRejected(f"there is no index {index!r} on {engine.spec}: create it with `ssi index`", status=404)
    properties = version.properties(engine.capabilities())
    reasons: list[str] = []
    notes = ["every document is rewritten once, with its own routing and only if nobody has changed it in the meantime"]
    documents = added = 0
    sample: list[StoredDocument] = []
    for name in names:
        info = engine.index_info(name)
        reasons += mapping_reasons(info, properties)
        if version.vector_path and (problem := given_field_problem(info, version.vector_path)):
            reasons.append(problem)
        notes += mapping_notes(info)
        n_documents = engine.count(name)
        documents += n_documents
        batch = [] if reasons else text_sample(engine, name, version)
        sample += batch
        n_bytes = _added_bytes(batch, version) * n_documents
        added += n_bytes
        reasons += version_reasons(engine, name)
        if isinstance(engine, ReportsDisk):
            try:
                reasons += disk_reasons(engine.disk_usage(name), n_bytes)
            except (EngineAuthError, EngineRejected) as error:
                notes.append(f"{name}: free disk space is unknown ({error})")
    texts = TextSample.of(version.encoder, [version.encoder.view.texts(document.source) for document in sample])
    notes += [] if engine.in_process else impacts_note(engine.capabilities(), version.routes)
    notes += vector_notes(version.encoder, [document.source for document in sample])
    if sample and not texts.has_text:
        reasons += text_reasons(version.encoder, texts, field_names(engine, names))
    of_texts = tuple(text_notes(version.encoder, texts))
    return Plan(
        index,
        names,
        documents,
        added,
        properties,
        tuple(dict.fromkeys(reasons)),
        tuple(dict.fromkeys([*notes, *of_texts])),
        of_texts,
    )


def mapping_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> list[str]:
    """Return reasons why the mapping or settings of an index do not allow writing the version's properties (pure)."""
    return [*_index_reasons(info), *_field_reasons(info, wanted)]


def _index_reasons(info: IndexInfo) -> Iterator[str]:
    source = info.mapping.get("_source") or {}
    mode = source.get("mode") or info.settings.get("index.mapping.source.mode", "stored")
    if source.get("enabled", True) in _FALSE or mode == "disabled":
        yield (
            f"{info.name}: _source is disabled, so neither the text nor the document can be read: create an index "
            "with `ssi index` from the original documents"
        )
    elif mode == "synthetic":
        yield (
            f"{info.name}: _source is synthetic, so a rewrite would not preserve the document its owner sent: use the "
            "route beside with `ssi index --write-store`, or a new index with stored _source"
        )
    if source.get("includes") or source.get("excludes"):
        yield (
            f"{info.name}: _source omits fields (includes/excludes), which a rewrite would lose: create a new index "
            "with `ssi index` from the original documents"
        )
    if info.data_stream:
        yield (
            f"{info.name} backs the data stream {info.data_stream!r}, which is append-only: copy the documents into an "
            "ordinary index with `ssi index`"
        )
    blocks = [name for name in _BLOCKS if str(info.settings.get(name, "false")) == "true"]
    if blocks:
        yield f"{info.name} is blocked for writing ({', '.join(blocks)}): lift the block first"


def _field_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> Iterator[str]:
    new = {name: definition for name, definition in wanted.items() if name not in info.properties}
    limit = int(info.settings.get("index.mapping.total_fields.limit", DEFAULT_FIELD_LIMIT))
    needed = n_fields(info.properties) + n_fields(new)
    if new and needed > limit:
        yield (
            f"{info.name}: {needed} fields including the {len(new)} new ones exceed the limit of {limit}: raise "
            f"index.mapping.total_fields.limit to {needed} or remove old versions by a rebuild"
        )
    for name, definition in wanted.items():
        present = info.properties.get(name)
        if present is not None and present.get("type") != definition.get("type"):
            yield (
                f"{info.name}: the field {name!r} exists as {present.get('type')!r}, not {definition.get('type')!r}, "
                f"because documents with fields {FIELD_PREFIX}* were copied into an index whose mapping did not have "
                "them, or a template created it. Copy the documents to a new index with the fields that `ssi versions "
                f'--mapping` prints for the old one, or without them (_source.excludes: ["{FIELD_PREFIX}*"])'
            )


def mapping_notes(info: IndexInfo) -> list[str]:
    """Return notes for the user about an index that are not reasons to refuse it (pure)."""
    notes = []
    dynamic = str(info.mapping.get("dynamic", "true")).lower()
    if dynamic != "true":
        notes.append(f"{info.name}: dynamic is {dynamic}; the new fields are mapped explicitly, so this is no problem")
    if (info.mapping.get("_routing") or {}).get("required"):
        notes.append(f"{info.name}: routing is required; each write uses its document's own routing")
    for setting in PIPELINES:
        pipeline = info.settings.get(setting, "_none")
        if pipeline != "_none":
            notes.append(
                f"{info.name}: {setting.removeprefix('index.')} is {pipeline!r}; partial updates do not run it. "
                f"It must not remove fields that begin with {FIELD_PREFIX!r} from documents it processes"
            )
    return notes


def version_reasons(engine: Engine, name: str) -> list[str]:
    """Return a reason if the documents have external versions: a partial update would increase them by one.

    An internal version counts the writes of a document, and each write took one sequence number of its shard, so it is
    at most ``_seq_no + 1``. A greater version is external.
    """
    if engine.in_process:
        return []
    body = {"size": SAMPLE, "_source": False, "version": True, "seq_no_primary_term": True}
    for hit in engine.search(name, body).hits:
        version, seq_no = int(hit.raw.get("_version", 1)), hit.raw.get("_seq_no")
        if seq_no is not None and version > int(seq_no) + 1:
            return [
                f"{name}: its documents have external versions ({hit.id!r:.60} has {version}). A rewrite would "
                "increase them, so that its owner's next write could be rejected as stale: build a new index with "
                "`ssi index --version-field`, or use the route beside"
            ]
    return []


def text_sample(engine: Engine, name: str, version: VersionEncoder) -> list[StoredDocument]:
    """Return up to `SAMPLE` documents of an index with the fields that the model reads.

    If the first documents have no text, documents that have one of the fields are returned, if there are any: an index
    may begin with documents of another kind.
    """
    paths, encoder = version.text_paths, version.encoder
    fields = encoder.view.source_fields
    first = next(iter(engine.scan(name, source=fields, batch_size=SAMPLE)), [])
    if not first or any(document_has_text(encoder, document.source) for document in first):
        return first
    query = {"bool": {"should": [{"exists": {"field": path}} for path in paths], "minimum_should_match": 1}}
    return next(iter(engine.scan(name, query=query, source=fields, batch_size=SAMPLE)), first)


def has_text(engine: Engine, name: str, version: VersionEncoder) -> bool:
    """Return whether a sampled document of an index has text in a field of the model."""
    sample = text_sample(engine, name, version)
    return any(document_has_text(version.encoder, document.source) for document in sample)


def field_names(engine: Engine, names: Sequence[str]) -> set[str]:
    """Return the fields of the first documents of each index, without those of versions."""
    batches = [next(iter(engine.scan(name, batch_size=SAMPLE)), []) for name in names]
    paths = {path for batch in batches for document in batch for path in paths_of(document.source)}
    return {path for path in paths if not path.startswith(FIELD_PREFIX)}


def _added_bytes(batch: Sequence[StoredDocument], version: VersionEncoder) -> int:
    """Return the mean JSON bytes of the new fields over a sample; 0 for an empty one.

    The store of ``version`` must not be open, so that no row is kept for it.
    """
    if not batch:
        return 0
    sizes = [len(json_bytes(fields)) for fields in version.fields([d.id for d in batch], [d.source for d in batch])]
    return sum(sizes) // len(sizes)


def n_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields of a mapping count towards the total_fields limit: leaves, objects, and copies."""
    inner = [definition.get(part) for definition in properties.values() for part in ("properties", "fields")]
    return len(properties) + sum(n_fields(children) for children in inner if isinstance(children, Mapping))


def disk_reasons(usage: DiskUsage, added_bytes: int) -> list[str]:
    """Return a reason if the disk may run full: the old documents stay on it until segments are merged (pure)."""
    if usage.free_bytes is None or not usage.total_bytes:
        return []
    left = usage.free_bytes - usage.index_bytes - added_bytes
    if left >= MIN_FREE_SHARE * usage.total_bytes:
        return []
    need = usage.index_bytes + added_bytes
    return [
        f"the rewrite needs up to {need / 1e9:,.2f} GB until old segments are merged, but only "
        f"{usage.free_bytes / 1e9:,.2f} GB are free and {MIN_FREE_SHARE:.0%} of the disk must stay free: free space"
    ]
