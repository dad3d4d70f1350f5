"""A folder with an inverted file, its words and document ids: built in blocks, searched by Boolean queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from papers.methods.boolean_query import matching, parse_boolean, words_of
from papers.methods.inverted_file import PAIR, InvertedFile, build_in_blocks
from reranker.errors import ArtifactError, InputError
from reranker.files import write_file
from reranker.formats import RejectLog, RejectSink, read_documents
from reranker.progress import Progress, no_progress
from reranker.text.analyzers import make_analyzer, parse_analyzer
from reranker.text.view import TextView

POSTINGS, STARTS, ABOUT = "postings.bin", "starts.npy", "inverted.json"
_FORMAT = 1
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class BooleanAnswer:
    """Documents that match a query."""

    ids: tuple[str, ...]
    """Ids in the order of the documents' file."""
    unknown: tuple[str, ...]
    """Words of the query that no document holds."""
    only_unknown: bool
    """Whether no document holds any word of the query; then nothing matches, also not NOT of such a word."""


@dataclass(frozen=True, eq=False)
class InvertedFolder:
    """An inverted file with what its numbers stand for."""

    file: InvertedFile
    words: Mapping[str, int]
    """Number of each word in the file."""
    ids: Sequence[str]
    """Id of each document number."""
    analyzer: str
    """Analyzer of documents and queries."""

    @classmethod
    def open(cls, folder: Path) -> InvertedFolder:
        """Return the content of a folder; the postings are memory-mapped.

        Raises
        ------
        ArtifactError
            If the folder was not written by `build_inverted_folder`, or is damaged.
        """
        try:
            about = json.loads((folder / ABOUT).read_bytes())
            starts = np.load(folder / STARTS, allow_pickle=False)
            is_whole = about["format"] == _FORMAT and len(starts) == len(about["words"]) + 1
            is_whole &= (folder / POSTINGS).stat().st_size == int(starts[-1]) * PAIR.itemsize
        except (OSError, ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise ArtifactError(
                f"{str(folder)!r} holds no complete inverted file: build it with `ssi inverted build --out {folder}`",
                path=str(folder),
            )
        pairs = np.memmap(folder / POSTINGS, PAIR, mode="r") if starts[-1] else np.empty(0, PAIR)
        file = InvertedFile(starts, pairs["document"], pairs["value"], len(about["ids"]))
        return cls(file, {word: row for row, word in enumerate(about["words"])}, about["ids"], about["analyzer"])

    def search(self, query: str) -> BooleanAnswer:
        """Return the documents that match a Boolean query. Raises `InputError` as `parse_boolean`."""
        analyzer = make_analyzer(parse_analyzer(self.analyzer))
        expression = parse_boolean(query, lambda text: analyzer.tokens([text])[0])
        words = words_of(expression)
        unknown = tuple(word for word in words if word not in self.words)
        if len(unknown) == len(words):
            return BooleanAnswer((), unknown, only_unknown=True)
        found = matching(expression, self.file, self.words.get)
        return BooleanAnswer(tuple(self.ids[row] for row in found.tolist()), unknown, only_unknown=False)


def build_inverted_folder(
    docs: Path,
    folder: Path,
    *,
    fields: Sequence[str],
    analyzer: str,
    block_entries: int,
    id_field: str | None = None,
    rejects: RejectSink | None = None,
    progress: Progress = no_progress,
) -> InvertedFolder:
    """Build the inverted file of a file of documents in blocks, and return it.

    Documents are read twice: for the words, which are numbered alphabetically, and for the entries. `ABOUT` is written
    last, so that an interrupted build is no inverted file.

    Raises
    ------
    InputError
        If the folder holds files that are not of a build, or no document has a word.
    """
    if folder.is_dir() and (others := sorted({one.name for one in folder.iterdir()} - {POSTINGS, STARTS, ABOUT})):
        raise InputError(f"{str(folder)!r} holds other files ({', '.join(others[:5])}): name a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    view, make = TextView.parse(list(fields)), make_analyzer(parse_analyzer(analyzer))

    def read(log: RejectSink | None) -> Iterator[tuple[str, list[str]]]:
        """Yield id and words of each document."""
        documents = read_documents(docs, id_field=id_field, rejects=log)
        while batch := list(islice(documents, _BATCH)):
            texts = make.tokens(["\n".join(view.texts(document.source)) for document in batch])
            yield from zip((document.id for document in batch), texts, strict=True)

    found: set[str] = set()
    ids: list[str] = []
    for id_, tokens in read(rejects):
        ids.append(id_)
        found.update(tokens)
        progress(len(ids), None)
    if not found:
        raise InputError(f"no document of {str(docs)!r} has a word in the fields {', '.join(fields)}: name others")
    words = {word: number for number, word in enumerate(sorted(found))}
    second = enumerate(read(RejectLog()))  # counted in the first pass
    entries = ((words[token], row, 1.0) for row, (_, tokens) in second for token in tokens)
    file = build_in_blocks(entries, folder, n_words=len(words), n_documents=len(ids), block_entries=block_entries)
    np.save(folder / STARTS, file.starts)
    about = {"format": _FORMAT, "analyzer": analyzer, "fields": list(fields), "words": list(words), "ids": ids}
    write_file(folder / ABOUT, json.dumps(about, ensure_ascii=False).encode())
    return InvertedFolder(file, words, ids, analyzer)
