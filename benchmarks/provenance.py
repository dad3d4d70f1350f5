"""What every kept result says of itself: command, seed, version, date and machine; and how it is written."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write results as JSON, with how they came about under ``about``; a ``seed`` among them stands there (else 0)."""
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    about = {
        "command": f"python benchmarks/{shlex.join(arguments)}",
        "seed": results.get("seed", 0),
        "version": metadata.version("ssi-reranker"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": results.get("machine", machine),
    }
    rest = {name: value for name, value in results.items() if name not in ("about", "machine", "seed")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, **rest}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
