"""Learning U, V and the field weights from links, judgements or preference pairs.

The names are imported when they are asked for, so that settings can be read without numerical libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reranker.training.config import TrainConfig
    from reranker.training.train import Corpus, Listener, TrainingReport, train_model
    from reranker.training.training_set import TrainingSet, from_judgements, from_links, from_pairs, mix

_NAMES = {
    "reranker.training.config": ("TrainConfig",),
    "reranker.training.train": (
        "Corpus",
        "Listener",
        "TrainingReport",
        "train_model",
    ),
    "reranker.training.training_set": (
        "TrainingSet",
        "from_judgements",
        "from_links",
        "from_pairs",
        "mix",
    ),
}
"""The modules that define the public names."""

__all__ = [
    "Corpus",
    "Listener",
    "TrainConfig",
    "TrainingReport",
    "TrainingSet",
    "from_judgements",
    "from_links",
    "from_pairs",
    "mix",
    "train_model",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
