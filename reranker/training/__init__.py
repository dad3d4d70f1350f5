"""Learning U, V and the field weights from links, judgements or preference pairs."""

from reranker.training.config import TrainConfig
from reranker.training.train import Corpus, Listener, TrainingReport, train_model
from reranker.training.training_set import TrainingSet, from_judgements, from_links, from_pairs, mix

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
