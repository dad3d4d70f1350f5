r"""Weights of words as words of a text field, for an index that has no weights. Pure.

A weight is a sum of powers of two. For each one, the text has the word with a character for the power at its end. A
query asks for the word with every character, each scored by its power; the sum of the scores is the weight. Like
Elasticsearch and OpenSearch, this keeps the 9 highest bits of a weight and drops the rest:

================== ================================================
weight             kept
================== ================================================
2**-20 to 2**20    9 bits, a relative error below 2**-8
below 2**-20       the bits from 2**-28 on, and at least 2**-28
from 2**20 on      the largest weight below 2**20
================== ================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

KEPT_BITS: Final = 9
LOWEST: Final = -28
"""Exponent of the lowest bit."""
HIGHEST: Final = 19
"""Exponent of the highest bit."""
LARGEST: Final = math.ldexp(2**KEPT_BITS - 1, HIGHEST + 1 - KEPT_BITS)
_FIRST: Final = ord("0")
_BITS: Final = tuple((chr(_FIRST + bit - LOWEST), 2.0**bit) for bit in range(LOWEST, HIGHEST + 1))
_ESCAPES: Final = str.maketrans({" ": "\\s", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"})
"""The characters at which the text is split into words, and the one that marks them."""
_ESCAPED: Final = re.compile(r"[ \t\n\r\f\\]")


def text_of_weights(weights: Mapping[str, float]) -> str:
    """Return the text that is indexed for words with weights, each above 0."""
    # Searched in all words at once: most documents have nothing to escape, and escaping takes a quarter of the time.
    if _ESCAPED.search("".join(weights)):
        weights = {word.translate(_ESCAPES): weight for word, weight in weights.items()}
    return " ".join([word + f" {word}".join(_characters(weight)) for word, weight in weights.items()])


def scored_words(word: str) -> list[tuple[str, float]]:
    """Return all words of the text that a word may have been indexed as, with the part of the weight that each adds."""
    escaped = word.translate(_ESCAPES)
    return [(escaped + character, value) for character, value in _BITS]


@lru_cache(maxsize=1 << 16)  # documents repeat weights, which are rounded before they are sent
def _characters(weight: float) -> str:
    """Return a character for each bit of a weight."""
    weight = min(weight, LARGEST)
    lowest = max(math.frexp(weight)[1] - KEPT_BITS, LOWEST)
    bits = max(1, int(math.ldexp(weight, -lowest)))
    start = _FIRST + lowest - LOWEST
    return "".join(chr(start + place) for place in range(bits.bit_length()) if bits >> place & 1)
