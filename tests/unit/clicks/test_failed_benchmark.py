"""What benchmarks/bench_click_pairs.py tells of a run that failed."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from bench_click_pairs import last_message


def told(error: Exception) -> str:
    """Return what Python writes to stderr of an error raised while another was handled."""
    try:
        try:
            raise KeyError("the first")
        except KeyError as first:
            raise error from first
    except Exception:
        return "a warning of a library\n" + traceback.format_exc()


def test_the_last_exception_is_told_whole() -> None:
    message = "Out of memory:\n  1.1 GB of 1.2 GB used\n\nPossible solutions:\n* use fewer threads"
    found = last_message(told(RuntimeError(message)))
    assert found == ("RuntimeError: Out of memory: 1.1 GB of 1.2 GB used Possible solutions: * use fewer threads")


def test_of_a_long_message_the_end_is_kept() -> None:
    long = last_message(told(ValueError("x" * 5_000 + " the end")))
    assert len(long) == 2_000 and long.endswith("x the end")


def test_without_an_exception_all_is_told() -> None:
    assert last_message("Killed\n  by the system\n") == "Killed by the system"
    assert last_message(" \n") == ""
