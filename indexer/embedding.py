"""Vectors of a text encoder for documents that have none: the same documents again, with one more field.

The documents are written in batches to ``OUT.partial``. After each batch, ``OUT.partial.json`` records how far it is
valid. A run that was killed continues there if its settings are the same.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from reranker.encoders import SentenceEncoder
from reranker.errors import ConfigError, InputError
from reranker.files import make_durable, replacing, sync_folder, write_file
from reranker.formats import RejectSink, arrow, parse_json, read_documents, read_lines
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import Document
from reranker.text.view import TextView

_PARQUET = ".parquet"
_DIGITS = 6


@dataclass(frozen=True)
class EmbeddingJob:
    """Input, output and settings of a run."""

    docs: Path
    """Document file."""
    out: Path
    """File to write: Parquet if its name ends in .parquet, JSON lines otherwise, with gzip if it ends in .gz."""
    view: TextView
    """Fields whose texts are joined; ``vector`` is the field that is added."""
    max_words: int
    """Words of a document that the encoder reads, at least 1."""
    batch: int
    """Documents that are written together, at least 1."""
    id_field: str | None = None
    """Field with the ids, see `reranker.formats.read_documents`."""

    @property
    def partial(self) -> Path:
        """The file of the documents that are finished."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def state(self) -> Path:
        """The file that records how far `partial` is valid."""
        return self.out.with_name(f"{self.out.name}.partial.json")

    def settings(self, encoder: SentenceEncoder) -> dict[str, Any]:
        """Return all that the vectors depend on, as a JSON object."""
        about = os.stat(self.docs)
        return {
            "docs": str(self.docs.resolve()),
            "bytes of docs": about.st_size,
            "time of docs": about.st_mtime_ns,
            "view": self.view.to_json(),
            "id field": self.id_field,
            "words": self.max_words,
            "encoder": encoder.fingerprint,
        }


@dataclass(frozen=True)
class EmbeddedDocuments:
    """How many documents were written."""

    n_documents: int
    n_without_text: int
    """Number of documents without text, which get no vector."""
    n_earlier: int
    """Number of documents that an interrupted run had written."""


@dataclass
class _State:
    settings: dict[str, Any]
    n_documents: int = 0
    n_without_text: int = 0
    n_bytes: int = 0


def embed_documents(
    job: EmbeddingJob,
    encoder: SentenceEncoder,
    *,
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
    say: Say = silent,
) -> EmbeddedDocuments:
    """Write the documents with their vectors, and return their number. The output appears when it is complete.

    Raises
    ------
    InputError
        If the documents cannot be read, or one has the field of the vectors already.
    ConfigError
        If an interrupted run had other settings, or the documents do not fit the columns of Parquet.
    """
    if not job.docs.is_file():
        raise InputError(f"the file {str(job.docs)!r} does not exist: check the spelling and the current directory")
    state = _earlier(job, _State(job.settings(encoder)))
    if state.n_documents:
        say(f"continuing after {state.n_documents:,} documents that an interrupted run wrote to {job.partial}")
    n_earlier = state.n_documents
    documents: Iterator[Document] = read_documents(job.docs, rejects=rejects, id_field=job.id_field)
    for _ in islice(documents, n_earlier):
        pass
    with open(job.partial, "r+b" if job.partial.exists() else "w+b") as file:
        file.truncate(state.n_bytes)
        file.seek(0, os.SEEK_END)
        while batch := list(islice(documents, job.batch)):
            _append(job, encoder, batch, state, file)
            progress(state.n_documents, None)
    if not state.n_documents:
        job.state.unlink(missing_ok=True)
        job.partial.unlink(missing_ok=True)
        raise InputError(f"{str(job.docs)!r} holds no usable document: give JSON lines or Parquet with an id and text")
    if state.n_without_text == state.n_documents:
        names = ", ".join(spec.path for spec in job.view.fields)
        raise InputError(f"no document of {str(job.docs)!r} has text in the fields {names}: name others with --fields")
    if job.out.suffix == _PARQUET:
        _write_parquet(job)
        job.partial.unlink()
    else:
        os.replace(job.partial, job.out)
        sync_folder(job.out.parent)
    job.state.unlink(missing_ok=True)
    return EmbeddedDocuments(state.n_documents, state.n_without_text, n_earlier)


def _earlier(job: EmbeddingJob, fresh: _State) -> _State:
    """Return the state of an interrupted run; ``fresh`` if there is none."""
    if not (job.state.is_file() and job.partial.is_file()):
        return fresh
    try:
        found = _State(**json.loads(job.state.read_bytes()))
        is_valid = 0 <= found.n_bytes <= job.partial.stat().st_size
    except (ValueError, TypeError):
        is_valid = False
    if not is_valid:
        raise InputError(f"{str(job.state)!r} is damaged: remove it and {job.partial.name}")
    changed = [name for name, value in fresh.settings.items() if found.settings.get(name) != value]
    if changed:
        name = changed[0]
        raise ConfigError(
            f"{str(job.partial)!r} is of an interrupted run with other settings ({name}: "
            f"{str(found.settings.get(name))[:100]}, now {str(fresh.settings[name])[:100]}): give the same settings, "
            f"or remove this file and {job.state.name} to begin again"
        )
    return found


def _append(
    job: EmbeddingJob, encoder: SentenceEncoder, batch: Sequence[Document], state: _State, file: IO[bytes]
) -> None:
    """Write a batch with its vectors, and then the state that includes it."""
    texts = [_text(job, document) for document in batch]
    filled = [row for row, text in enumerate(texts) if text]
    vectors = encoder.encode([texts[row] for row in filled])
    rows: list[dict[str, Any]] = []
    for document in batch:
        if job.view.vector in document.source:
            raise InputError(
                f"document {document.id!r} has the field {job.view.vector!r} already: name another with --vector-field"
            )
        rows.append({**({} if job.id_field else {"id": document.id}), **document.source})
    for row, vector in zip(filled, vectors, strict=True):
        rows[row][job.view.vector] = [float(f"{value:.{_DIGITS}g}") for value in vector.tolist()]
    data = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    file.write(gzip.compress(data, 6, mtime=0) if job.out.suffix == ".gz" else data)
    make_durable(file)
    state.n_documents += len(batch)
    state.n_without_text += len(batch) - len(filled)
    state.n_bytes = file.tell()
    write_file(job.state, json.dumps(asdict(state)).encode())


def _text(job: EmbeddingJob, document: Document) -> str:
    """Return the words of a document that the encoder reads."""
    return " ".join(" ".join(job.view.texts(document.source)).split()[: job.max_words])


def _write_parquet(job: EmbeddingJob) -> None:
    """Write the finished documents as Parquet. Its columns are found in a first pass over them."""
    pa = arrow()

    def batches() -> Iterable[list[dict[str, Any]]]:
        lines = (parse_json(line.data) for line in read_lines(job.partial, max_line_bytes=2**30))
        while batch := list(islice(lines, job.batch)):
            yield batch

    try:
        schema = pa.schema([])
        for batch in batches():
            found = pa.Table.from_pylist(_with_all_keys(batch)).schema
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
        place = schema.get_field_index(job.view.vector)
        if place >= 0:
            schema = schema.set(place, pa.field(job.view.vector, pa.list_(pa.float32())))
        with replacing(job.out) as file, pa.parquet.ParquetWriter(file, schema) as writer:
            for batch in batches():
                writer.write_table(pa.Table.from_pylist(batch, schema))
    except pa.ArrowException as error:
        raise ConfigError(
            f"the documents do not fit the columns of Parquet ({str(error)[:200]}): name an --out that ends in "
            f".jsonl.gz; the vectors are kept in {job.partial.name}"
        ) from error


def _with_all_keys(batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the documents with each key of one of them in the first, from which pyarrow takes the columns."""
    keys = dict.fromkeys(key for document in batch for key in document)
    return [{**dict.fromkeys(keys), **batch[0]}, *batch[1:]]
