"""From a click log to preference pairs, to impressions and to ratings, on any backend with the same result."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from reranker.clicks.backends import STATUSES, LogFiles, Resources, Task, open_backend
from reranker.clicks.pair_config import PairConfig
from reranker.clicks.schema import Impression, ShownDocument
from reranker.files import replacing
from reranker.records import Pair

PAIR_COLUMNS = ("query", "better", "worse", "weight")
_BATCH_ROWS = 8192


@dataclass
class PairTable:
    """Pairs in Parquet files of a temporary folder, sorted by query, better and worse, none of them twice."""

    files: tuple[Path, ...]
    """The rows in order: the columns query, better, worse (strings) and weight (double, above 0)."""
    counts: dict[str, int]
    """What became of the queries (``searches``; why left out, by reason; ``impressions`` that were used), of the
    ``preferences`` they stated, the ``votes`` (a person and a pair) and the ``pairs``."""
    config: PairConfig
    """What they were made by."""
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)

    def __len__(self) -> int:
        return self.counts["pairs"]

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        for batch in self._batches():
            columns = [batch.column(name).to_pylist() for name in PAIR_COLUMNS]
            yield from map(Pair, *columns)

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write one Parquet file, readable by its owner, whole or not at all; return the number of pairs."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = [pa.string()] * 3 + [pa.float64()]
        schema = pa.schema([pa.field(*one, nullable=False) for one in zip(PAIR_COLUMNS, types, strict=True)])
        with replacing(Path(path), private=True) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in self._batches():
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
        return len(self)

    def close(self) -> None:
        """Remove the temporary files."""
        self._folder.cleanup()

    def __enter__(self) -> PairTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self) -> Iterator[Any]:
        import pyarrow.parquet as pq

        for path in self.files:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=_BATCH_ROWS * 8, columns=list(PAIR_COLUMNS), use_threads=False)


def make_pairs(
    log: LogFiles,
    config: PairConfig | None = None,
    *,
    backend: str = "duckdb",
    since: int | None = None,
    until: int | None = None,
    resources: Resources | None = None,
) -> PairTable:
    """Return the pairs that the clicks of a log state, with weights.

    The weight of (query, better, worse) is the sum over people who stated it: 1 each, or the inverse propensity of the
    rank of ``better``, reduced where a cap of `PairConfig` is passed. Neither the order of the log nor repeated lines
    change the result, and, where sessions are logged, neither do clocks, except that robots are told by speed and the
    range is by time.

    Parameters
    ----------
    log : LogFiles
        A `reranker.clicks.log.ClickLog`, or anything with its ``files``.
    config : PairConfig, optional
        Strategy, caps, robots.
    backend : {"duckdb", "spark"}
        Where to compute; the result is the same.
    since, until : int or None
        Milliseconds: impressions from ``since`` on and before ``until``; undated ones count as the oldest. Robots
        are told by the whole log.
    resources : Resources, optional
        Threads, memory, temporary folder, Spark.

    Raises
    ------
    ConfigError
        For an unknown backend.
    InputError
        If the files cannot be read.
    MissingExtra
        Without the backend's library.
    """
    config, resources = config or PairConfig(), resources or Resources()
    engine = open_backend(backend)
    folder = tempfile.TemporaryDirectory(prefix="ssi-pairs-", dir=resources.folder)
    try:
        files, counts = engine.write(Task(log, config, "pairs", since, until), resources, Path(folder.name))
    except BaseException:
        folder.cleanup()
        raise
    return PairTable(files, _named_counts(counts), config, folder)


def impressions(
    log: LogFiles,
    config: PairConfig | None = None,
    *,
    since: int | None = None,
    until: int | None = None,
    backend: str = "duckdb",
    resources: Resources | None = None,
) -> Iterator[Impression]:
    """Yield the shown lists of a log with what was clicked, robots left out, by time (undated first) and query id.

    Parameters as in `make_pairs`; of the configuration only ``robots`` and ``session_gap_s`` matter here.
    """
    config, resources = config or PairConfig(), resources or Resources()
    task = Task(log, config, "impressions", since, until)
    batches = open_backend(backend).rows(task, resources, _BATCH_ROWS)
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for _, group in groupby(rows, key=lambda row: row[0]):
        of_list = list(group)
        query_id, query, session, user, network, time, application, randomised = of_list[0][:8]
        shown = tuple(ShownDocument(*row[8:]) for row in of_list)
        yield Impression(query_id, query, shown, session, user, network, time, application, randomised)


@dataclass(frozen=True, slots=True)
class Rating:
    """How well a document served a query: the ``people`` to whom it was shown, and how many of them clicked it.

    ``examined`` is how many looked at it, by the propensities of the ranks where it stood (``people`` without any).
    """

    query: str
    document: str
    people: int
    clicks: int
    examined: float

    @property
    def share(self) -> float:
        """Clicks of those who looked: 0 to 1.

        With P(click) = P(rank is examined) P(document attracts) this estimates the second factor. Where the ranks have
        propensities of less than a millionth, nobody looked, and any click is a share of 1.
        """
        return min(1.0, self.clicks / self.examined) if self.examined else float(self.clicks > 0)


def ratings(
    log: LogFiles,
    config: PairConfig | None = None,
    *,
    since: int | None = None,
    until: int | None = None,
    backend: str = "duckdb",
    resources: Resources | None = None,
) -> Iterator[Rating]:
    """Yield the ratings of all shown documents, by query and document; each person counts once a document.

    Parameters as in `make_pairs`; strategy and caps do not matter here.
    """
    config, resources = config or PairConfig(), resources or Resources()
    for batch in open_backend(backend).rows(Task(log, config, "ratings", since, until), resources, _BATCH_ROWS):
        for query, document, people, clicks, units in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            yield Rating(query, document, int(people), int(clicks), int(units) / 1e6)


def _named_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts under the names and in the order that `PairTable` states."""
    names = (*STATUSES, "kept", "listed", "impressions", "preferences", "votes", "stated", "pairs")
    of = {name: int(counts.get(name, 0)) for name in names}
    return {
        "searches": sum(of[name] for name in (*STATUSES, "kept")),
        **{name: of[name] for name in STATUSES},
        "no_list": of["kept"] - of["listed"],
        "no_click_in_list": of["listed"] - of["impressions"],
        "impressions": of["impressions"],
        "preferences": of["preferences"],
        "votes": of["votes"],
        "too_few_people": of["stated"] - of["pairs"],
        "pairs": of["pairs"],
    }
