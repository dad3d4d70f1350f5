"""Code shared by the commands that make a version live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from reranker.cli import common
from reranker.engines import Engine
from reranker.releases import ControlRecord, origins_of

force_option = click.option(
    "--force", is_flag=True, help="Skip the check for documents whose vector of the version is missing or stale."
)


def show_live(
    engine: Engine, record: ControlRecord, as_json: bool, hint: str = "", model_path: Path | None = None
) -> None:
    """Print the live version, where its calibration comes from, and a hint for the next step."""
    calibration = record.calibration(record.live or "")
    entries = {key: entry for key, entry in calibration.items() if isinstance(entry, Mapping)}
    boosts = {key: entry["boost"] for key, entry in entries.items() if "boost" in entry}
    origins = origins_of(calibration)
    if as_json:
        common.print_json(
            {
                "index": record.index,
                "live": record.live,
                "previous": list(record.previous),
                "calibrated": bool(calibration),
                "calibrated_from": origins,
                "boosts": boosts,
            }
        )
    else:
        common.out().print(f"live for {record.index}: {(record.live or '')[:12]}{hint}")
        if origins:
            common.out().print(f"the calibration was carried over from {', '.join(origins)}", soft_wrap=True)
        for key, boost in boosts.items():
            body, _, mode = key.partition(":")
            common.out().print(f"boost of the impacts: {boost} (mode {mode}, body {body}), by `ssi calibrate`")
    if note := calibration_note(engine, record, model_path):
        common.warn(note)


def calibration_note(engine: Engine, record: ControlRecord, model_path: Path | None = None) -> str:
    """Return that the live version has no calibration, and the command that fits one; "" if it has one."""
    from reranker.rerank import DEFAULT_ALPHA

    if record.live is None or record.calibration(record.live):
        return ""
    return (
        f"warning: version {record.live[:12]} is live for {record.index!r} without a calibration, so searches use the "
        f"weight alpha = {DEFAULT_ALPHA}, and may gain less. Fit it: ssi calibrate --engine {engine.spec} --index "
        f"{record.index} --model {model_path or 'MODEL'} --body BODY --qrels QRELS --query-file QUERIES"
    )
