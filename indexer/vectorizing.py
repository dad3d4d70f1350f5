"""Vectors of documents in a separate file, computed in advance and used later instead of encoding.

The file is Parquet with the columns ``id``, ``src`` (hash of the text), ``vec`` and ``terms``, packed as in an index;
``vec`` is null for a document without text. The fields of all routes and engines are computed from these.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.build import FileTexts
from indexer.encoding import ENCODE_BATCH
from indexer.suitability import vocabulary_notes
from reranker.errors import EncoderMismatch, InputError
from reranker.files import replacing
from reranker.formats import (
    DocumentLine,
    RejectLog,
    RejectSink,
    SeenIds,
    arrow,
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

_GROUP_BYTES = 16 * 1024 * 1024
_READ_ROWS = 4096
_ENCODER_KEY = b"ssi_encoder_id"
_Packed = tuple[bytes | None, bytes]


def vectorize(
    docs: Path,
    model: Path,
    out: Path,
    *,
    id_field: str | None = None,
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> int:
    """Write the vectors of a document file atomically, and return their number.

    Of several documents with one id, the first is used.

    Parameters
    ----------
    docs : Path
        Document file.
    model : Path
        Folder of the model.
    out : Path
        File of vectors to write.
    id_field : str, optional
        Field with the ids, see `reranker.formats.read_documents`.
    rejects : RejectSink, optional
        Receives rejected lines.
    progress : Progress
        Receives the number of lines that were read, and their estimated total.
    notice : Say
        Receives notes on the fit of the model's vocabulary to the texts.

    Raises
    ------
    InputError
        If the documents cannot be read, or none has a field of the model.
    ArtifactError
        If the model cannot be read.
    """
    pa = arrow()
    encoder = load_model(model).encoder
    texts = FileTexts.of(docs, encoder, id_field)
    texts.check()
    for note in vocabulary_notes(encoder, texts.sample):
        notice(note)
    schema = _schema().with_metadata({_ENCODER_KEY: encoder.encoder_id})
    n_bytes = 0 if is_parquet(docs) or peek_bytes(docs, 2) == b"\x1f\x8b" else docs.stat().st_size
    documents = read_documents(docs, rejects=rejects or RejectLog(), id_field=id_field)
    group, n_rows = list[Any](), 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        with pa.parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            while batch := list(itertools.islice(documents, ENCODE_BATCH)):
                group.append(_rows(batch, encoder, schema))
                n_rows += len(batch)
                progress(batch[-1].line, round(n_bytes * batch[-1].line / batch[-1].end_offset) or None)
                if sum(rows.nbytes for rows in group) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))
    return n_rows


def _rows(documents: Sequence[DocumentLine], encoder: Encoder, schema: Any) -> Any:
    """Return the rows of documents as an Arrow batch."""
    ids = [one.id for one in documents]
    encoded = encoder.encode([one.source for one in documents], ids)
    columns = (ids, encoded.source_hashes, *map(list, zip(*_packed(encoder, encoded), strict=True)))
    return arrow().RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema)


def _packed(encoder: Encoder, encoded: EncodedDocuments) -> list[_Packed]:
    """Return the vector (None without text) and lexical row of each document as bytes."""
    vectors = pack_vectors(encoded.vectors, encoder.quantisation)
    known = [vector if has_text else None for vector, has_text in zip(vectors, encoded.has_text, strict=True)]
    return list(zip(known, pack_rows(encoded.rows, encoder.quantisation), strict=True))


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


def _schema() -> Any:
    """Return the columns of a file of vectors."""
    pa = arrow()
    text, data = pa.string(), pa.binary()
    columns = [("id", text, False), ("src", text, False), ("vec", data, True), ("terms", data, False)]
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in columns])
