"""Vectors of documents in a separate file: computed by this process or by Spark, and used later instead of encoding.

The file is Parquet with the columns ``id``, ``src`` (hash of the text), ``vec`` and ``terms``, packed as in an index;
``vec`` is null for a document without text. The fields of all routes and engines are computed from these. Both backends
use the same reader (on parts of the document file or the whole), encoder and writer, so their rows are equal.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from indexer.build import FileTexts
from indexer.encoding import ENCODE_BATCH
from indexer.suitability import vocabulary_notes
from reranker.errors import ConfigError, EncoderMismatch, InputError
from reranker.files import replacing
from reranker.formats import (
    MAX_SAMPLE_CHARS,
    WHOLE,
    FilePart,
    RecordError,
    RejectSink,
    SeenIds,
    arrow,
    document_parts,
    duplicate_id,
    id_key,
    is_parquet,
    open_parquet,
    peek_bytes,
    read_documents,
)
from reranker.kernels.packing import pack_rows, pack_vectors, unpack_terms, unpack_vectors
from reranker.models.model_folder import load_model
from reranker.models.ranking_model import EncodedDocuments, Encoder, RankingModel
from reranker.progress import Progress, Say, no_progress, silent
from reranker.spark import spark_session

PART_BYTES, MAX_PARTS = 8 * 1024 * 1024, 10_000
"""Minimum bytes that one Spark task reads, and maximum number of tasks; a larger file gets larger parts."""
_GROUP_BYTES = 16 * 1024 * 1024
_READ_ROWS = 4096
_ENCODER_KEY = b"ssi_encoder_id"
_STOPPED = "stopped"
_Packed = tuple[bytes | None, bytes]


class Row(NamedTuple):
    """The vector of a document and its position in the file, or, if ``kind`` is set, a rejected line."""

    line: int
    offset: int
    end: int
    id: str = ""
    src: str = ""
    vec: bytes | None = None
    terms: bytes = b""
    kind: str | None = None
    reason: str = ""
    sample: str = ""


class VectorizingJob(NamedTuple):
    """Input and output of a vectorization."""

    docs: Path
    """Document file."""
    model: Path
    """Folder of the model."""
    out: Path
    """File of vectors to write."""
    id_field: str | None = None
    """Field with the ids, see `reranker.formats.read_documents`."""
    spark_master: str | None = None
    """URL of the Spark master."""


def vectorize(
    job: VectorizingJob,
    backend: str = "local",
    *,
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> int:
    """Write the vectors of a document file atomically, and return their number.

    Of several documents with one id, the first is used. Rejected lines go to ``rejects``. ``notice`` receives notes on
    the fit of the model's vocabulary to the texts.

    Raises
    ------
    InputError
        If the documents cannot be read, or none has a field of the model.
    ConfigError
        For an unknown backend.
    ArtifactError
        If the model cannot be read.
    MissingExtra
        If pyspark is needed and not installed.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}: it must be one of {', '.join(BACKENDS)}")
    pa = arrow()
    encoder = load_model(job.model).encoder
    texts = FileTexts.of(job.docs, encoder, job.id_field)
    texts.check()
    for note in vocabulary_notes(encoder, texts.sample):
        notice(note)
    schema = _schema().with_metadata({_ENCODER_KEY: encoder.encoder_id})
    n_bytes = 0 if is_parquet(job.docs) or peek_bytes(job.docs, 2) == b"\x1f\x8b" else job.docs.stat().st_size
    seen, group, n_rows = SeenIds(), [], 0
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(job.out) as file, closing(BACKENDS[backend](job, encoder)) as batches:
        with pa.parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for rows in itertools.chain(batches, [None]):
                if rows is not None:
                    group.append(_accepted(rows, seen, rejects))
                    line, end = rows["line"][-1].as_py(), rows["end"][-1].as_py()
                    progress(line, round(n_bytes * line / end) or None)
                if group and (rows is None or sum(some.nbytes for some in group) >= _GROUP_BYTES):
                    table = pa.Table.from_batches(group).select(schema.names)
                    writer.write_table(table.cast(schema))
                    group, n_rows = [], n_rows + len(table)
    return n_rows


def _accepted(rows: Any, seen: SeenIds, rejects: RejectSink | None) -> Any:
    """Return the rows of documents; rejected lines and repeated ids go to ``rejects``."""
    identified = zip(rows["id"].to_pylist(), rows["kind"].to_pylist(), strict=True)
    new = np.array([kind is None and seen.add(id_) for id_, kind in identified], bool)
    for row in (Row(**values) for values in rows.filter(~new).to_pylist()):
        if row.kind == _STOPPED:
            raise InputError(row.reason)
        error = RecordError(row.kind, row.reason) if row.kind else duplicate_id(row.id)
        if rejects is not None:
            rejects.reject(row.line, row.offset, error.message, row.sample or row.id, kind=error.kind)
    return rows.filter(new)


class _Refused:
    """Collects rejected lines (as a `reranker.formats.RejectSink`)."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        text = sample.decode("utf-8", "replace") if isinstance(sample, bytes) else sample
        self.rows.append(Row(line, offset, offset + 1, kind=kind, reason=reason, sample=text[:MAX_SAMPLE_CHARS]))


def _rows(job: VectorizingJob, encoder: Encoder, part: FilePart = WHOLE) -> Generator[Any]:
    """Yield documents and rejected lines of a part of the file in order, in Arrow batches; ids may be repeated."""
    refused = _Refused()
    documents = read_documents(job.docs, rejects=refused, duplicates="keep", id_field=job.id_field, part=part)
    while batch := list(itertools.islice(documents, ENCODE_BATCH)):
        encoded = encoder.encode([one.source for one in batch], [one.id for one in batch])
        rows = [
            Row(one.line, one.offset, one.end_offset, one.id, src, *packed)
            for one, src, packed in zip(batch, encoded.source_hashes, _packed(encoder, encoded), strict=True)
        ]
        yield _batch(sorted([*rows, *refused.rows], key=lambda row: row.offset))
        refused.rows = []
    if refused.rows:
        yield _batch(refused.rows)


def _batch(rows: Sequence[Row]) -> Any:
    return arrow().RecordBatch.from_pydict(dict(zip(Row._fields, zip(*rows, strict=True), strict=True)), _row_schema())


def _packed(encoder: Encoder, encoded: EncodedDocuments) -> list[_Packed]:
    """Return the vector (None without text) and lexical row of each document as bytes."""
    vectors = pack_vectors(encoded.vectors, encoder.quantisation)
    known = [vector if has_text else None for vector, has_text in zip(vectors, encoded.has_text, strict=True)]
    return list(zip(known, pack_rows(encoded.rows, encoder.quantisation), strict=True))


def _spark_rows(job: VectorizingJob, encoder: Encoder) -> Generator[Any]:
    """Yield all rows in order, computed by Spark: each task encodes one part of the file and writes its own file.

    Everything is read and written by path, so documents, model and target must be on storage that all machines can
    access. Only the names of the files pass through Spark. A repeated task writes another file.
    """
    job = job._replace(docs=job.docs.absolute(), model=job.model.absolute(), out=job.out.absolute())
    encoder_id = encoder.encoder_id
    parts = document_parts(job.docs, max(PART_BYTES, job.docs.stat().st_size // MAX_PARTS))
    with tempfile.TemporaryDirectory(prefix=".ssi-vectors-", dir=job.out.parent) as folder:

        def encode(batches: Iterator[Any]) -> Iterator[Any]:
            for number in (number for batch in batches for number in batch.column(0).to_pylist()):
                path = _encode_part(job, encoder_id, parts[number], folder)
                yield arrow().RecordBatch.from_pydict({"part": [number], "path": [path]})

        with spark_session("ssi vectorize", master=job.spark_master, instead="local") as spark:
            numbers = spark.range(0, len(parts), 1, len(parts))
            paths = dict(numbers.mapInArrow(encode, "part bigint, path string").collect())
        for number in range(len(parts)):
            with open_parquet(paths[number]) as file:
                yield from file.iter_batches(batch_size=_READ_ROWS, use_threads=False)


def _encode_part(job: VectorizingJob, encoder_id: str, part: FilePart, folder: str) -> str:
    """Return the path of a new file with the rows of a part. A damaged input becomes a row with its error."""
    encoder = _encoder_of_worker(job.model)
    if encoder.encoder_id != encoder_id:
        raise EncoderMismatch(f"a worker found another model in {str(job.model)!r}: give all machines the same folder")
    descriptor, path = tempfile.mkstemp(suffix=".parquet", dir=folder)
    with open(descriptor, "wb") as file:
        with arrow().parquet.ParquetWriter(file, _row_schema(), use_dictionary=False, write_page_checksum=True) as out:
            try:
                for batch in _rows(job, encoder, part):
                    out.write_batch(batch)
            except InputError as error:
                out.write_batch(_batch([Row(0, 0, 1, kind=_STOPPED, reason=error.message)]))
    return path


@lru_cache(maxsize=1)
def _encoder_of_worker(model: Path) -> Encoder:
    return load_model(model).encoder


BACKENDS: dict[str, Callable[[VectorizingJob, Encoder], Generator[Any]]] = {"local": _rows, "spark": _spark_rows}
"""Functions that yield the rows in Arrow batches, by the values of ``--backend``."""


class StoredVectors:
    """The vectors of a file written by `vectorize`, by id. Memory-mapped from a temporary copy; 16 bytes per document.

    ``missing`` counts the requested documents whose vector is missing or belongs to another text.

    Raises `EncoderMismatch` if the vectors belong to another encoder, `InputError` if the file is damaged or not a file
    of vectors.
    """

    def __init__(self, path: Path, encoder_id: str) -> None:
        pa = arrow()
        self.missing = 0
        self._asked = SeenIds()
        keys = [np.zeros(0, np.uint64)]
        with tempfile.NamedTemporaryFile(prefix="ssi-vectors-") as copy:
            try:
                with pa.ipc.new_file(copy, _schema()) as writer:
                    for batch in _stored_batches(path, encoder_id):
                        writer.write_batch(batch)
                        keys.append(np.fromiter(map(id_key, batch.column(0).to_pylist()), np.uint64, batch.num_rows))
                copy.flush()
            except OSError as error:
                error.filename = f"{tempfile.gettempdir()} (TMPDIR names another folder)"
                raise
            self._columns = pa.ipc.open_file(pa.memory_map(copy.name)).read_all().columns
        found = np.concatenate(keys)
        self._order = np.argsort(found)
        self._keys = found[self._order]

    def find(self, ids: Sequence[str], hashes: Sequence[str]) -> list[_Packed | None]:
        """Return the vector and lexical row of each document if its id and text hash match, else None."""
        keys = np.fromiter(map(id_key, ids), np.uint64, len(ids))
        places = np.searchsorted(self._keys, keys)
        rows: list[_Packed | None] = []
        for id_, src, key, place in zip(ids, hashes, keys, places.tolist(), strict=True):
            row = None
            if place < len(self._keys) and self._keys[place] == key:
                stored_id, stored_src, *values = (one[int(self._order[place])].as_py() for one in self._columns)
                row = (values[0], values[1]) if (stored_id, stored_src) == (id_, src) else None
            self.missing += row is None and self._asked.add(id_)
            rows.append(row)
        return rows


def _stored_batches(path: Path, encoder_id: str) -> Iterator[Any]:
    with open_parquet(path) as file:
        of = ((file.schema_arrow.metadata or {}).get(_ENCODER_KEY) or b"").decode("ascii", "replace")
        if not of or not file.schema_arrow.equals(_schema()):
            raise InputError(f"{str(path)!r} is not a file of vectors: write one with `ssi vectorize`", path=str(path))
        if of != encoder_id:
            raise EncoderMismatch(
                f"the vectors of {str(path)!r} belong to encoder {of[:12]}, but the model has {encoder_id[:12]}: write "
                "them again with `ssi vectorize` and this model, or give the model that computed them",
                vectors=of,
                model=encoder_id,
            )
        yield from file.iter_batches(batch_size=_READ_ROWS, use_threads=False)


@dataclass(frozen=True, eq=False)
class VectorisedEncoder(Encoder):
    """An encoder that uses the vectors of a file of a document's current text, and computes missing ones."""

    stored: StoredVectors = field(kw_only=True)

    def encode(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> EncodedDocuments:
        """Return vectors, rows and hashes of documents, see `Encoder.encode`; without ``ids`` all are computed."""
        if ids is None:
            return super().encode(documents, ids)
        hashes = [self.view.source_hash(source) for source in documents]
        found = self.stored.find(ids, hashes)
        missing = [place for place, row in enumerate(found) if row is None]
        made = super().encode([documents[place] for place in missing], [ids[place] for place in missing])
        rows = dict(zip(missing, _packed(self, made), strict=True))
        whole = [row or rows[place] for place, row in enumerate(found)]
        has_text = np.array([vector is not None for vector, _ in whole], bool)
        vectors = np.zeros((len(whole), self.n_dims), np.float32)
        vectors[has_text] = unpack_vectors([vector for vector, _ in whole if vector is not None], self.n_dims)
        return EncodedDocuments(vectors, unpack_terms([terms for _, terms in whole]), hashes, has_text)


def with_vectors(model: RankingModel, path: Path) -> tuple[RankingModel, StoredVectors]:
    """Return the model with an encoder that uses a file of vectors, and these; errors as `StoredVectors`."""
    stored = StoredVectors(path, model.encoder_id)
    own = {part.name: getattr(model.encoder, part.name) for part in fields(model.encoder)}
    return replace(model, encoder=VectorisedEncoder(**own, stored=stored)), stored


def _row_schema() -> Any:
    """Return the columns of `Row`."""
    types = dict.fromkeys(Row._fields, "string") | dict.fromkeys(Row._fields[:3], "int64")
    return arrow().schema((types | {"vec": "binary", "terms": "binary"}).items())


def _schema() -> Any:
    """Return the columns of a file of vectors."""
    pa = arrow()
    text, data = pa.string(), pa.binary()
    columns = [("id", text, False), ("src", text, False), ("vec", data, True), ("terms", data, False)]
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in columns])
