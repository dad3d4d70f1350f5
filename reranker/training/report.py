"""How a model came about: what `ssi train` prints and the manifest keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reranker.baselines.comparison import Comparison
from reranker.training.trainer import TrainResult


@dataclass(frozen=True)
class TrainingReport:
    """How a model came about.

    Parameters
    ----------
    split : str
        What validation was made of: ``documents`` (unseen ones), ``links``, ``queries`` or ``given``.
    lexical_map, valid_map : float
        Validation MAP of q.d alone and of the model.
    scale : float
        Weight of the learned part that validation chose.
    comparison : Comparison or None
        The model beside tuned lexical baselines on the validation queries.
    result : TrainResult
        Learning curve.
    dropped : mapping
        Evidence that could not be used, by reason.
    model_class : str
        What was learned, of `reranker.training.config.MODEL_CLASSES`.
    """

    split: str
    lexical_map: float
    valid_map: float
    scale: float
    comparison: Comparison | None
    result: TrainResult
    dropped: dict[str, int]
    model_class: str = "low_rank"


def metrics_of(report: TrainingReport) -> dict[str, Any]:
    """Return what the manifest keeps; no times, so that equal runs give equal bytes."""
    curve = [{k: v for k, v in asdict(line).items() if k != "seconds"} for line in report.result.history]
    return {
        "validation": {
            "split": report.split,
            "map": report.valid_map,
            "lexical_map": report.lexical_map,
            "scale": report.scale,
            "best_epoch": report.result.best_epoch,
            "curve": curve,
        },
        "comparison": report.comparison.to_json() if report.comparison else None,
    }
