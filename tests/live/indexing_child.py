"""A process that loads or rebuilds and can be killed: ``python -m tests.live.indexing_child ACTION SPEC INDEX FILE``.

ACTION is ``load`` or ``rebuild``. Prints ``ready`` before the first write and, at the end,
one line of JSON. State lies in ``SSI_STATE_DIR``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from indexer.build import BuildOptions, build_index
from indexer.bulk import BulkLimits
from indexer.load import LoadOptions, load_documents
from reranker.engines import EngineSettings, open_engine


def main(action: str, spec: str, index: str, file: str) -> None:
    """Run one action and print its account."""
    engine = open_engine(spec, EngineSettings(read_timeout_s=60))
    engine.capabilities()
    options = LoadOptions(limits=BulkLimits(200), checkpoint_s=0.0, reject_path=Path(file).with_suffix(".rejects"))
    before = peak_bytes()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if action == "load":
        report = load_documents(engine, index, Path(file), options=options)
    else:
        report = build_index(engine, index, Path(file), None, BuildOptions(rebuild=True, load=options)).load
    sys.stdout.write(json.dumps({**report.to_json(), "grown_bytes": peak_bytes() - before}) + "\n")


def peak_bytes() -> int:
    """Return the largest resident size so far; not by getrusage, which a child takes over from its parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
