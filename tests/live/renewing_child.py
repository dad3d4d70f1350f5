"""A process that renews vectors and can be killed: ``python -m tests.live.renewing_child ACTION SPEC INDEX MODEL``.

ACTION is ``revectorize`` (every text is read) or ``sync`` (those changed since the last sync by the field ``updated``).
Prints ``ready`` before the first request, a line ``retry`` for each retry and, at the end, one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from contextlib import closing

from indexer.bulk import BulkLimits, RetryPolicy
from indexer.renewal import RenewOptions, Target, sync
from reranker.engines import EngineSettings, open_engine
from reranker.engines.retry import RequestRetryPolicy, Retries
from reranker.models.model_folder import load_model

REQUESTS = RequestRetryPolicy(first_pause_s=0.02, longest_pause_s=0.2, deadline_s=60)
WRITES = RetryPolicy(max_calls=20, base_s=0.02, cap_s=0.2, max_outage_s=60)


def say(text: str) -> None:
    """Print a line at once: a process that is killed prints nothing more."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(action: str, spec: str, index: str, model: str) -> None:
    """Renew the vectors once."""
    loaded = load_model(model)
    say("ready")
    retries = Retries(REQUESTS, rng=random.Random(os.getpid()), notice=lambda _: say("retry"))
    # Slow enough to be killed in the middle.
    options = RenewOptions(limits=BulkLimits(60), policy=WRITES, max_docs_per_s=1000)
    with closing(open_engine(spec, EngineSettings(read_timeout_s=20), retries)) as engine:
        report = sync(Target(engine, index, loaded), options, updated_field="updated" if action == "sync" else None)
    say(json.dumps(report.to_json()))


if __name__ == "__main__":
    main(*sys.argv[1:])
