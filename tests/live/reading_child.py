"""A process that reads an index and can be killed: ``python -m tests.live.reading_child SPEC INDEX FILE``.

It notes how far it is after each batch, prints how many documents it has, and reads slowly.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from reranker.engines import open_engine
from reranker.retrain import documents
from reranker.text.view import TextView

VIEW = TextView.parse(["title", "text"])


def tell(done: int, _: int | None) -> None:
    """Print the number of documents that are read, and wait."""
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()
    time.sleep(0.1)


if __name__ == "__main__":
    documents.NOTE_EVERY_S = 0
    spec, index, path = sys.argv[1:]
    documents.export_documents(open_engine(spec), index, VIEW, Path(path), tell)
