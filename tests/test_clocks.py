"""Waits, deadlines and time limits are measured by clocks that never go back, whatever happens to the time of day."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\btime\.(localtime|gmtime)\(\)")
ALLOWED = {
    "reranker/clicks/log.py": "when clicks are deleted: days since the time of day that a click states",
    "reranker/engines/clients.py": "a Retry-After that is a date; the deadline of retries bounds the wait",
    "reranker/engines/tantivy.py": "the age of a file, which the file system states in time of day",
    "reranker/releases.py": "the time that a record states",
    "reranker/service/operate.py": "how old the end of a job is, as shown on the page",
    "reranker/service/search.py": "the time that a row of the click log states",
    "reranker/service/sink.py": "the time that a row of the click log states",
    "reranker/service/state.py": "when a job ended, as shown on the page",
}
"""Modules that read the time of day, and for what."""


def test_only_modules_that_state_a_time_of_day_read_it() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("reranker", "indexer")
        for path in sorted((ROOT / package).rglob("*.py"))
        if WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert found <= set(ALLOWED), "measure by time.monotonic, or say here why the time of day is needed"


def test_retries_and_scans_read_no_time_of_day() -> None:
    for name in ("reranker/engines/retry.py", "reranker/engines/rest.py", "indexer/bulk.py", "indexer/renewal.py"):
        assert name not in ALLOWED
