"""The shapes that the papers' plain SGD can learn, and their settings (spec 2.2 to 2.5)."""

from __future__ import annotations

from dataclasses import dataclass

from reranker.errors import ConfigError
from reranker.kernels.plain_sgd_types import PRIME

SHAPES = {
    "diagonal": "M02, W = diag(w), from 1",
    "full": "M03, a weight for each pair of words, from the identity: the margin ranking perceptron B05",
    "zero_diagonal": "M04, the same with W_ii = 0, from 0",
    "hash": "M09, pairs share H weights, from 0; with an identity M10 trained jointly",
    "tied": "M05, U^T U + I",
    "low_rank": "M06, U^T V + I; M08 with n_words",
    "no_identity": "M07, U^T V; M26 with two vocabularies",
    "cubic": "M18, degree 3, shared U and V",
    "cubic_separate": "M19, degree 3, U2 and V2 of its own for degree 2",
    "polynomial": "M20, any degree, shared",
    "full_cubic": "M17, a weight for each word with each pair of words, for at most 200 words",
}
"""Names of `PlainShape`, and what they are."""

_WITHOUT_IDENTITY = ("hash", "no_identity")
_ONE_VOCABULARY = ("diagonal", "zero_diagonal", "tied")
LOW_RANK = ("tied", "low_rank", "no_identity", "cubic", "cubic_separate", "polynomial")
"""Those made of embeddings."""


@dataclass(frozen=True, slots=True)
class PlainShape:
    """What to learn.

    Parameters
    ----------
    name : str
        One of `SHAPES`.
    identity : float, optional
        a, the weight of q.d in the score; None: 1, or 0 for "hash" and "no_identity". Of no effect on "diagonal",
        "full", "zero_diagonal" and "full_cubic", whose weights say it all.
    n_words : int, optional
        Embeddings of the n most frequent words alone (M08); None: of all words.
    n_slots : int
        H of "hash".
    prime : int
        P of "hash".
    degree : int
        k of "polynomial", at least 2.

    Raises
    ------
    ConfigError
        If a value is not legal.
    """

    name: str
    identity: float | None = None
    n_words: int | None = None
    n_slots: int = 1_000_000
    prime: int = PRIME
    degree: int = 2

    def __post_init__(self) -> None:
        if self.name not in SHAPES:
            raise ConfigError(f"the shape {self.name!r} does not exist; choose one of {', '.join(SHAPES)}")
        if self.n_words is not None and (self.name not in LOW_RANK or self.n_words < 0):
            raise ConfigError(
                f"n_words {self.n_words} does not fit the shape {self.name}: give 0 or more to {', '.join(LOW_RANK)}"
            )
        if self.n_slots < 1 or self.degree < 2 or not 0 < self.prime < 2**32:
            raise ConfigError(
                f"n_slots {self.n_slots}, prime {self.prime}, degree {self.degree} are not legal: slots must be at "
                f"least 1, the prime below 2**32 and the degree at least 2"
            )

    @property
    def exact_weight(self) -> float:
        """The weight of q.d in the score."""
        default = 0.0 if self.name in _WITHOUT_IDENTITY else 1.0
        return default if self.identity is None else self.identity

    def check_widths(self, query: int, document: int) -> None:
        """Refuse two vocabularies for a shape that joins a word with itself.

        Raises
        ------
        ConfigError
            If the widths differ and the shape has a diagonal or an identity.
        """
        joined = self.name in _ONE_VOCABULARY or (self.name in (*LOW_RANK, "hash") and self.exact_weight != 0)
        if joined and query != document:
            raise ConfigError(
                f"the shape {self.name} matches words with themselves, but queries have {query} words and documents "
                f"{document}: use one vocabulary, or no_identity"
            )
