"""Learning U, V and the field weights from links, judgements or preference pairs."""

from reranker.training.config import TrainConfig
from reranker.training.evidence import Evidence, from_judgements, from_links, from_pairs, mix
from reranker.training.train import Corpus, Listener, TrainingReport, train_model

__all__ = [
    "Corpus",
    "Evidence",
    "Listener",
    "TrainConfig",
    "TrainingReport",
    "from_judgements",
    "from_links",
    "from_pairs",
    "mix",
    "train_model",
]
