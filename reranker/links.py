"""Links between documents: PageRank, and documents with a field that is computed from their links."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.accounts import InputAccount, account_of_ids
from reranker.arrays import Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.files import replacing
from reranker.formats import RejectLog, RejectSink, read_documents
from reranker.progress import Progress, no_progress
from reranker.tables import at_least_one, read_links
from reranker.text.view import TextView

_BATCH = 1_000
"""Documents that are written together."""


def pagerank(
    links: sp.csr_matrix, damping: float = 0.85, tolerance: float = 1e-12, max_iterations: int = 10_000
) -> Float64:
    """Return the stationary probability of each document, (N,) float64, summing to 1.

    pi = pi P with P_ij = damping A_ij / outdeg(i) + (1 - damping) / N if i has links, and 1/N otherwise. The power
    iteration starts from 1/N and ends when the sum of absolute changes is at most ``tolerance``; the error is then at
    most damping / (1 - damping) times that.

    Parameters
    ----------
    links : csr_matrix, (N, N)
        A_ij >= 0: number of links from document i to document j; outdeg(i) = sum_j A_ij.
    damping : float
        Lambda, at least 0 and below 1: the probability of following a link. The course gives no value.
    tolerance : float
        Above 0.

    Raises
    ------
    ShapeMismatch
        If the links are not square.
    InputError
        For a negative or non-finite link, or no document.
    ConfigError
        If damping or tolerance is out of range.
    TrainingError
        If it has not converged after ``max_iterations``.

    Source: COURSE, PageRank; spec B21, A29 (rows without links are 1/N).
    """
    n = links.shape[0]
    if links.shape != (n, n):
        raise ShapeMismatch(f"links of shape {links.shape} are not square: rows and columns must be the same documents")
    if not (0.0 <= damping < 1.0 and tolerance > 0.0):
        raise ConfigError(f"damping is {damping!r} and tolerance {tolerance!r}: 0 <= damping < 1, tolerance above 0")
    if n == 0 or not (np.isfinite(links.data).all() and (links.data >= 0).all()):
        raise InputError("PageRank needs at least one document, and links that are finite and not negative")
    out_degree = np.asarray(links.sum(axis=1), dtype=np.float64).ravel()
    linked = out_degree > 0
    share = np.divide(damping, out_degree, out=np.zeros(n), where=linked)
    follow = (sp.diags(share) @ links.astype(np.float64)).T.tocsr()
    rank: Float64 = np.full(n, 1.0 / n)
    for _ in range(max_iterations):
        # Probability that does not follow a link is spread evenly: (1 - damping) of linked documents, all of the
        # others.
        jump = 1.0 - damping * rank[linked].sum()
        new: Float64 = follow @ rank + jump / n
        new /= new.sum()
        change = np.abs(new - rank).sum()
        rank = new
        if change <= tolerance:
            return rank
    raise TrainingError(
        f"PageRank still changes by {change:.2e} after {max_iterations:,} steps: raise the limit, or the tolerance "
        f"of {tolerance:g}"
    )


def anchor_texts(texts: Sequence[str], links: sp.csr_matrix) -> list[str | None]:
    """Return, for each document, the texts of the documents that link to it, joined in their order; None without any.

    Parameters
    ----------
    texts : sequence of str
        What each document says of those that it links to, for instance its title.
    links : csr_matrix, (N, N)
        Links from row to column.

    Source: COURSE, anchor texts as index terms of the page that they lead to.
    """
    to = links.T.tocsr()
    to.sort_indices()
    rows = np.split(to.indices, to.indptr[1:-1])
    return ["\n".join(filter(None, (texts[source] for source in row))) or None for row in rows]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file of documents with their links."""

    docs: Path
    """Document file, read once for each use."""
    links: Path
    """File of links: source id TAB target id."""
    id_field: str | None = None
    """Field with the ids, see `reranker.formats.read_documents`."""

    def graph(
        self, rejects: RejectSink | None = None, check: Callable[[InputAccount], None] | None = None
    ) -> tuple[dict[str, int], sp.csr_matrix]:
        """Return the row of each document id, and the links, (N, N) float64 with 1 for a link from row to column.

        Repeated links count once. Links of a document to itself, and links with an unknown id, are left out.

        Parameters
        ----------
        check : callable, optional
            Called with the account of the links before they are used; it may raise.

        Raises
        ------
        InputError
            If the documents cannot be read, or no link between two different documents is left.
        """
        read = read_documents(self.docs, id_field=self.id_field, rejects=rejects)
        row_of = {document.id: row for row, document in enumerate(read)}
        links = at_least_one("links", self.links, rejects, lambda: list(read_links(self.links, rejects=rejects)))
        if check is not None:
            check(account_of_ids("links", links, row_of, row_of))
        pairs = sorted(
            {(row_of[one], row_of[other]) for one, other in links if one != other and one in row_of and other in row_of}
        )
        if not pairs:
            raise InputError(
                f"{str(self.links)!r} has no link between two different documents of {str(self.docs)!r}: check that "
                f"both files have the same ids (--id-field), and that a line is source id TAB target id"
            )
        sources, targets = np.array(pairs, np.int64).T
        shape = (len(row_of), len(row_of))
        return row_of, sp.csr_matrix((np.ones(len(pairs)), (sources, targets)), shape=shape)

    def texts(self, fields: Sequence[str]) -> list[str]:
        """Return the texts of the fields of each document, joined, in the order of the file."""
        view = TextView.parse(fields)
        read = read_documents(self.docs, id_field=self.id_field, rejects=RejectLog())  # counted by `graph`
        return [" ".join(filter(None, view.texts(document.source))) for document in read]

    def write(self, out: Path, field: str, values: Iterable[Any], progress: Progress = no_progress) -> int:
        """Write the documents with one more field, and return their number. ``out`` appears when it is complete.

        Parameters
        ----------
        out : Path
            File of JSON lines, with gzip if its name ends in .gz.
        values : iterable
            The value of each document, in the order of the file; None for a document without one.

        Raises
        ------
        InputError
            If a document has the field already.
        ConfigError
            If ``out`` is a Parquet file.
        """
        if out.suffix == ".parquet":
            raise ConfigError(f"{str(out)!r} would be Parquet: name a file of JSON lines, such as {out.stem}.jsonl.gz")
        n_written = 0
        with replacing(out) as file:
            for data in self._lines(field, values):
                file.write(gzip.compress(data, 6, mtime=0) if out.suffix == ".gz" else data)
                n_written += data.count(b"\n")
                progress(n_written, None)
        return n_written

    def _lines(self, field: str, values: Iterable[Any]) -> Iterator[bytes]:
        """Yield the lines of some documents together, so that gzip has enough to compress."""
        lines: list[bytes] = []
        read = read_documents(self.docs, id_field=self.id_field, rejects=RejectLog())  # counted by `graph`
        for document, value in zip(read, values, strict=True):
            if field in document.source:
                raise InputError(f"document {document.id!r} has the field {field!r} already: name another with --field")
            row: dict[str, Any] = {**({} if self.id_field else {"id": document.id}), **document.source}
            row |= {} if value is None else {field: value}
            lines.append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            if len(lines) == _BATCH:
                yield b"".join(lines)
                lines.clear()
        if lines:
            yield b"".join(lines)
