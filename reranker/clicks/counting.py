"""Counts of a click log for propensities, made in DuckDB: a log of any size, without a Python object a list."""

from __future__ import annotations

import numpy as np

from reranker.clicks.backends import LogFiles, Resources, Task
from reranker.clicks.backends.duckdb_backend import prepared
from reranker.clicks.click_counts import ClickCounts
from reranker.clicks.pair_config import PairConfig

_COUNTS = """SELECT
    DENSE_RANK() OVER (ORDER BY query, document) - 1 AS item, rank, shown, clicked, randomised
FROM (
    SELECT k.query, s.document, s.rank, k.randomised, COUNT(*) AS shown, COUNT(*) FILTER (s.clicked) AS clicked
    FROM shown AS s JOIN kept AS k ON k.query_id = s.query_id
    GROUP BY k.query, s.document, s.rank, k.randomised
)
ORDER BY item, rank, randomised"""


def count_log(
    log: LogFiles,
    config: PairConfig | None = None,
    *,
    since: int | None = None,
    until: int | None = None,
    resources: Resources | None = None,
) -> ClickCounts:
    """Return how often each document of each query was shown at each rank and clicked there, robots left out.

    Parameters as in `reranker.clicks.pairs.make_pairs`. The same as `count_clicks` of the log's impressions.

    Raises
    ------
    InputError
        If the files cannot be read.
    MissingExtra
        Without DuckDB.
    """
    task = Task(log, config or PairConfig(), "impressions", since, until)
    with prepared(task, resources or Resources()) as connection:
        found = connection.execute(_COUNTS).fetchnumpy()
    item, rank, shown, clicked = (
        np.asarray(found[name], dtype=np.int64) for name in ("item", "rank", "shown", "clicked")
    )
    return ClickCounts(item, rank, shown, clicked, np.asarray(found["randomised"], dtype=bool))
