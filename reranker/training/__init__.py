"""Learning U, V and the field weights from links, judgements or preference pairs.

The names are imported when they are asked for, so that settings can be read without numerical libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reranker.lazy import names_of

if TYPE_CHECKING:
    from reranker.training.config import TrainConfig
    from reranker.training.reading import DocumentSource, Listener
    from reranker.training.train import TrainingReport, train_model
    from reranker.training.training_set import TrainingSet, from_judgements, from_links, from_pairs, mix
    from reranker.training.unlabelled import train_unlabelled

_NAMES = {
    "reranker.training.config": ("TrainConfig",),
    "reranker.training.reading": ("DocumentSource", "Listener"),
    "reranker.training.train": ("TrainingReport", "train_model"),
    "reranker.training.training_set": (
        "TrainingSet",
        "from_judgements",
        "from_links",
        "from_pairs",
        "mix",
    ),
    "reranker.training.unlabelled": ("train_unlabelled",),
}
"""The modules that define the public names."""

__all__ = [
    "DocumentSource",
    "Listener",
    "TrainConfig",
    "TrainingReport",
    "TrainingSet",
    "from_judgements",
    "from_links",
    "from_pairs",
    "mix",
    "train_model",
    "train_unlabelled",
]

__getattr__ = names_of(__name__, _NAMES)
