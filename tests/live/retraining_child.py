"""A process that retrains and can be killed: ``python -m tests.live.retraining_child SPEC INDEX LOG MODELS``.

Prints ``ready``, begins when it has read a line and, at the end, prints one line of JSON. It writes slowly, so that a
kill meets it at that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reranker.clicks.log import ClickLog
from reranker.engines import EngineSettings, open_engine
from reranker.errors import RerankerError
from reranker.retrain.loop import Retraining
from reranker.retrain.settings import RetrainSettings
from tests.unit.retrain.shop import FAST

DOCS_PER_S = 60.0


def main(spec: str, index: str, log: str, models: str) -> None:
    """Retrain once and print how it ended."""
    engine = open_engine(spec, EngineSettings(read_timeout_s=60))
    engine.capabilities()
    settings = RetrainSettings(Path(models), train=FAST, max_docs_per_s=DOCS_PER_S, words_only=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    answer: dict[str, str | int | None]
    try:
        result = Retraining(engine, index, ClickLog(log), settings).run()
        answer = {"outcome": result.outcome, "candidate": result.candidate, "live": result.live_after}
    except RerankerError as error:
        answer = {"outcome": "error", "code": error.exit_code, "message": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
