"""Run ``ssi`` and write the files of the project whose functions ran: ``python -m tests.journey FILE ARGUMENT...``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(str(ROOT / package) for package in ("reranker", "indexer"))


def run(target: Path, arguments: list[str]) -> None:
    """Run a command, and write the files whose functions it called, one a line."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGES):
            files.add(str(Path(code.co_filename).relative_to(ROOT)))

    threading.setprofile(note)
    sys.setprofile(note)
    from reranker.cli.main import main

    try:
        main(arguments)
    finally:
        sys.setprofile(None)
        target.write_text("\n".join(sorted(files)), encoding="utf-8")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
