"""The checks before the first write to an index that is not ours: why it is refused, and what writing costs.

Adding fields to a stored document means that the engine writes the whole document again from its ``_source``. Where
that is not the document its owner sent, or a write has side effects, `preflight` refuses the index with the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from indexer.encoding import VersionEncoder
from reranker.engines.protocol import DiskUsage, Engine, IndexInfo, ReportsDisk
from reranker.engines.vectors import FIELD_PREFIX
from reranker.engines.wire import json_bytes
from reranker.errors import EngineAuthError, EngineRejected, PreflightRefused

SAMPLE = 100
"""Documents looked at for sizes and versions."""


MIN_FREE_SHARE = 0.10
"""Share of a disk that must stay free: engines stop placing shards at 10 % and block writes at 5 %."""


DEFAULT_FIELD_LIMIT = 1000


_FALSE = (False, "false")


PIPELINES = ("index.default_pipeline", "index.final_pipeline")


_BLOCKS = ("index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete")


@dataclass(frozen=True, slots=True)
class Plan:
    """What re-vectorising an index means."""

    index: str
    concrete: tuple[str, ...]
    """The indexes behind it."""
    documents: int
    """Documents in them; each is rewritten once."""
    added_bytes: int
    """JSON bytes the new fields add, estimated from a sample."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Properties that are added."""
    reasons: tuple[str, ...] = ()
    """Why it is refused; empty if it is not."""
    notes: tuple[str, ...] = ()
    """What to know, none of it a reason to stop."""

    def check(self) -> None:
        """Raise `PreflightRefused` if there is a reason to stop."""
        if self.reasons:
            raise PreflightRefused(self.index, self.reasons)


def preflight(engine: Engine, index: str, version: VersionEncoder) -> Plan:
    """Return the plan of writing a version's fields into an index; nothing is written.

    `EngineRejected` where the index does not exist. `Unsupported` where the engine lacks a field type of the routes
    wanted.
    """
    names = engine.index_names(index)
    if not names:
        raise EngineRejected(f"there is no index {index!r} on {engine.spec}: make it with `ssi index`", status=404)
    properties = version.properties(engine.capabilities())
    reasons: list[str] = []
    notes = ["every document is rewritten once, with its own routing and only if nobody changed it meanwhile"]
    documents = added = 0
    for name in names:
        info = engine.index_info(name)
        reasons += mapping_reasons(info, properties)
        notes += mapping_notes(info)
        n_documents = engine.count(name)
        documents += n_documents
        n_bytes = _added_bytes(engine, name, version) * n_documents if not reasons else 0
        added += n_bytes
        reasons += version_reasons(engine, name)
        if isinstance(engine, ReportsDisk):
            try:
                reasons += disk_reasons(engine.disk_usage(name), n_bytes)
            except (EngineAuthError, EngineRejected) as error:
                notes.append(f"{name}: free disk space is unknown ({error})")
    return Plan(index, names, documents, added, properties, tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(notes)))


def mapping_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> list[str]:
    """Return why the mapping or the settings of an index forbid to write the properties of a version (pure)."""
    return [*_index_reasons(info), *_field_reasons(info, wanted), *first_stage_reasons(info, wanted)]


def first_stage_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> list[str]:
    """Return why vectors that OpenSearch is to search by cannot be added to an index (pure)."""
    off = str(info.settings.get("index.knn", "false")) != "true"
    for name, definition in wanted.items():
        present = info.properties.get(name, {})
        if "method" in definition and (off or (present and "method" not in present)):
            return [
                f"{info.name}: its vectors cannot be searched by (index.knn is {'off' if off else 'on'}, which never "
                "changes): make a new index with `ssi index --rebuild --routes first-stage` and the routes in use"
            ]
    return []


def _index_reasons(info: IndexInfo) -> Iterator[str]:
    source = info.mapping.get("_source") or {}
    mode = source.get("mode") or info.settings.get("index.mapping.source.mode", "stored")
    if source.get("enabled", True) in _FALSE or mode == "disabled":
        yield (
            f"{info.name}: _source is disabled, so neither the text nor the document can be read back: fill an index "
            "with `ssi index` from the original documents"
        )
    elif mode == "synthetic":
        yield (
            f"{info.name}: _source is synthetic, a rewrite would not give back the document its owner sent: use the "
            "route beside with `ssi index --write-store`, or a new index with stored _source"
        )
    if source.get("includes") or source.get("excludes"):
        yield (
            f"{info.name}: _source leaves fields out (includes/excludes), which a rewrite would lose: fill a new index "
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
            f"{info.name}: {needed} fields with the {len(new)} new ones, the limit is {limit}: raise "
            f"index.mapping.total_fields.limit to {needed} or empty old versions by a rebuild"
        )
    for name, definition in wanted.items():
        present = info.properties.get(name)
        if present is not None and present.get("type") != definition.get("type"):
            yield (
                f"{info.name}: the field {name!r} exists as {present.get('type')!r}, not {definition.get('type')!r}: "
                "an index template or another program made it; rebuild the index"
            )


def mapping_notes(info: IndexInfo) -> list[str]:
    """Return what to know about an index that is no reason to refuse it (pure)."""
    notes = []
    dynamic = str(info.mapping.get("dynamic", "true")).lower()
    if dynamic != "true":
        notes.append(f"{info.name}: dynamic is {dynamic}; the new fields are added by name, which is fine")
    if (info.mapping.get("_routing") or {}).get("required"):
        notes.append(f"{info.name}: routing is required; each write carries its document's own")
    for setting in PIPELINES:
        pipeline = info.settings.get(setting, "_none")
        if pipeline != "_none":
            notes.append(
                f"{info.name}: {setting.removeprefix('index.')} is {pipeline!r}; partial updates do not run it. "
                f"It must not remove fields that begin with {FIELD_PREFIX!r} from documents it processes"
            )
    return notes


def version_reasons(engine: Engine, name: str) -> list[str]:
    """Return a reason if the documents carry external versions: a partial update would raise them by one.

    An internal version counts the writes of a document, and each took one sequence number of its shard, so it is at
    most ``_seq_no + 1``. A greater one came from outside.
    """
    if engine.in_process:
        return []
    body = {"size": SAMPLE, "_source": False, "version": True, "seq_no_primary_term": True}
    for hit in engine.search(name, body).hits:
        version, seq_no = int(hit.raw.get("_version", 1)), hit.raw.get("_seq_no")
        if seq_no is not None and version > int(seq_no) + 1:
            return [
                f"{name}: its documents carry external versions ({hit.id!r:.60} has {version}), which a rewrite would "
                "raise, so that its owner's next write could be refused as stale: build a new index with "
                "`ssi index --version-field`, or use the route beside"
            ]
    return []


def _added_bytes(engine: Engine, name: str, version: VersionEncoder) -> int:
    """Return the mean JSON bytes of the new fields over a sample; 0 for an empty index.

    The store of ``version`` is not open yet: no row waits for it.
    """
    batch = next(iter(engine.scan(name, source=version.text_paths, batch_size=SAMPLE)), [])
    if not batch:
        return 0
    sizes = [len(json_bytes(fields)) for fields in version.fields([d.id for d in batch], [d.source for d in batch])]
    return sum(sizes) // len(sizes)


def n_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields a mapping counts against ``index.mapping.total_fields.limit``: leaves, objects, copies."""
    inner = [definition.get(part) for definition in properties.values() for part in ("properties", "fields")]
    return len(properties) + sum(n_fields(children) for children in inner if isinstance(children, Mapping))


def disk_reasons(usage: DiskUsage, added_bytes: int) -> list[str]:
    """Return a reason if the disk may run full: until segments merge, the old documents lie beside the new (pure)."""
    if usage.free_bytes is None or not usage.total_bytes:
        return []
    left = usage.free_bytes - usage.index_bytes - added_bytes
    if left >= MIN_FREE_SHARE * usage.total_bytes:
        return []
    need = usage.index_bytes + added_bytes
    return [
        f"the rewrite needs up to {need / 1e9:,.2f} GB until old segments are merged away; "
        f"{usage.free_bytes / 1e9:,.2f} GB are free and {MIN_FREE_SHARE:.0%} of the disk must stay so: free space first"
    ]
