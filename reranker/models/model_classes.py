"""The model classes that can be trained, one line each.

Training, the choice among classes, the form in which a model is served, error messages and the command line read this
list. To add a class, write one file with its fit function and add a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

AUTO = "auto"
"""Option value for the class with the best validation result (`reranker.training.context.choose`)."""
DEFAULT_CLASS = "low_rank"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """How a model class is trained and served."""

    name: str
    summary: str
    """One line for the help text."""
    fit: str
    """Fit function as ``module:function``, imported when the class is trained.

    Its arguments are a `TrainingContext` and either None or the parameters at the end of the run with validation; it
    returns `TrainedParameters`. Given the latter, the second run, on all preferences, takes as many steps and reuses
    the weights.
    """
    form: str = "linear"
    """How tables give a document vector, in every engine and store: a key of `reranker.models.scorers.FORMS`."""
    has_vectors: bool = True
    """False if the score is only q.d."""
    can_continue: bool = False
    """Whether training can start from a model of this class."""
    has_own_query_side: bool = False
    """Whether U can be trained while all document vectors stay unchanged."""

    def load_fit(self) -> Callable[..., Any]:
        """Return the fit function."""
        fit: Callable[..., Any] = resolve_name(self.fit)
        return fit


_CLASSES = (
    ModelClass("lexical", "only q.d, with tuned parameters", "reranker.training.linear:fit_lexical", has_vectors=False),
    ModelClass("tied", "q'(U'U + I)d", "reranker.training.linear:fit_tied", can_continue=True),
    ModelClass(
        "low_rank", "q'(U'V + I)d", "reranker.training.linear:fit_low_rank", can_continue=True, has_own_query_side=True
    ),
    ModelClass(
        "s2net", "q.d plus the cosine of projected texts", "reranker.training.s2net_class:fit_s2net_class", "unit"
    ),
    ModelClass("cubic", "low_rank with pairs of words of a document", "reranker.training.cubic:fit_cubic", "cubic"),
)

MODEL_CLASSES: dict[str, ModelClass] = {each.name: each for each in _CLASSES}
"""Classes by name, in the order in which ``auto`` tries them."""


def names_where(fits: Callable[[ModelClass], bool], joined_by: str = " or ") -> str:
    """Return the names of the classes for which ``fits`` is true, in alphabetical order, for a message."""
    return joined_by.join(sorted(name for name, model_class in MODEL_CLASSES.items() if fits(model_class)))
