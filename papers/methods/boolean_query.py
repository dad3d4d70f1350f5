"""Boolean queries (AND, OR, NOT, parentheses) over an inverted file (spec B17).

The grammar, from the loosest operator to the tightest; AND may be left out between two operands::

    or   = and { "OR" and }
    and  = not { [ "AND" ] not }
    not  = "NOT" not | "(" or ")" | word

Operators are recognised in any case. In double quotes, ``"not"`` is a word. A text that the analyzer divides into
several words stands for all of them: ``wi-fi`` for ``wi AND fi``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import scipy.sparse as sp

from papers.methods.inverted_file import InvertedFile, invert
from papers.methods.rows import binary, check_widths, pair_products
from reranker.arrays import Float32, Float64, Int64
from reranker.errors import InputError

MAX_DEPTH = 100
"""Largest nesting depth of parentheses and NOT."""
_TOKEN = re.compile(r'\s*(?:([()])|"([^"]*)"|([^\s()"]+))')

Analyze = Callable[[str], Sequence[str]]
"""Function that divides a text into words as the documents were."""


@dataclass(frozen=True, slots=True)
class Word:
    """Documents that hold a word."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """Documents that do not match the operand."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Joined:
    """Documents that match all operands (AND), or at least one (OR)."""

    operator: Literal["AND", "OR"]
    operands: tuple[Expression, ...]


Expression = Word | Not | Joined


@dataclass(frozen=True, slots=True)
class _Token:
    """An operator or parenthesis (``kind``), or a word."""

    kind: str
    text: str
    at: int
    """Position in the query, from 0."""


def parse_boolean(text: str, analyze: Analyze) -> Expression:
    """Return the expression of a query.

    Raises
    ------
    InputError
        If parentheses or quotes are not balanced, an operator has no operand, an operand has no word, or the nesting
        is deeper than `MAX_DEPTH`. The message gives the place in the query.

    Source: COURSE, Boolean model; spec B17.
    """
    return _Parser(tuple(_tokens(text)), analyze).whole()


def words_of(expression: Expression) -> list[str]:
    """Return the words of an expression, in order, each once."""
    if isinstance(expression, Word):
        return [expression.text]
    operands = (expression.operand,) if isinstance(expression, Not) else expression.operands
    return list(dict.fromkeys(word for operand in operands for word in words_of(operand)))


def matching(expression: Expression, file: InvertedFile, number_of: Callable[[str], int | None]) -> Int64:
    """Return the documents of the file that match, ascending int64.

    Lists of documents are merged: intersection for AND, union for OR, complement for NOT.

    Parameters
    ----------
    number_of : callable
        Function from a word to its number in the file, None if the file does not have it; no document holds it then.
    """
    if isinstance(expression, Word):
        number = number_of(expression.text)
        return np.empty(0, np.int64) if number is None else file.postings(number)[0].astype(np.int64)
    if isinstance(expression, Not):
        out = matching(expression.operand, file, number_of)
        return np.setdiff1d(np.arange(file.n_documents), out, assume_unique=True)
    lists = [matching(operand, file, number_of) for operand in expression.operands]
    found = lists[0]
    for other in lists[1:]:
        found = np.union1d(found, other) if expression.operator == "OR" else np.intersect1d(found, other, True)
    return found


N_RAREST = 3
"""Number of words of a text that `RarestPairs` builds a query from."""


@dataclass(frozen=True, eq=False)
class RarestPairs:
    """Score of the Boolean query of a text's three rarest words: (a AND b) OR (a AND c) OR (b AND c).

    The score is 1 for a matching document, else 0. A text with two words asks for both, a text with one for that word;
    a text without words matches nothing. AND of all words of a page matches nearly nothing, and OR nearly everything.

    Source: B17 (disjunctive normal form); the choice of words is ours.
    """

    idf: Float64
    """idf of each word, (D,) float64; equally rare words are taken in the order of their numbers."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return 1 or 0 for every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        file = invert(d_rows)
        scores = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for row, words in enumerate(self._rarest(q_rows)):
            if words:
                scores[row, matching(_pairs_of(words), file, int)] = 1.0
        return scores

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return 1 or 0 for query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        numbers = self._rarest(q_rows)
        indptr = np.concatenate(([0], np.cumsum([len(words) for words in numbers])))
        indices = np.array([word for words in numbers for word in sorted(words)], np.int32)
        kept = sp.csr_matrix((np.ones(len(indices)), indices, indptr), shape=q_rows.shape)
        n_words = np.diff(indptr)
        held = pair_products(kept, binary(d_rows)) >= np.minimum(n_words, N_RAREST - 1)
        return np.asarray(held & (n_words > 0), dtype=np.float32)

    def _rarest(self, q_rows: sp.csr_matrix) -> list[list[int]]:
        """Return the rarest words of each query, rarest first."""
        rows = np.split(binary(q_rows).indices, binary(q_rows).indptr[1:-1])
        return [row[np.lexsort((row, -self.idf[row]))][:N_RAREST].tolist() for row in rows]


def _pairs_of(words: Sequence[int]) -> Expression:
    """Return the query of pairs of words, which are written as their numbers."""
    if len(words) == 1:
        return Word(str(words[0]))
    pairs = [Joined("AND", (Word(str(one)), Word(str(other)))) for one, other in combinations(words, 2)]
    return pairs[0] if len(pairs) == 1 else Joined("OR", tuple(pairs))


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a query."""
    place = 0
    end = len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            at = text.index('"', place)
            raise InputError(f'the quotation mark at character {at + 1} is not closed: write "word"')
        at = found.start() + len(found[0]) - len(found[0].lstrip())
        bracket, quoted, plain = found.groups()
        if bracket or (plain or "").upper() in ("AND", "OR", "NOT"):
            yield _Token(bracket or plain.upper(), bracket or plain, at + 1)
        else:
            yield _Token("word", plain if quoted is None else quoted, at + 1)
        place = found.end()


@dataclass(slots=True)
class _Parser:
    """Recursive descent over the tokens of a query."""

    tokens: tuple[_Token, ...]
    analyze: Analyze
    place: int = 0

    def whole(self) -> Expression:
        """Return the expression of all tokens."""
        if not self.tokens:
            raise InputError("the query is empty: write words, AND, OR, NOT and parentheses")
        expression = self._or(0)
        if self.place < len(self.tokens):  # only a parenthesis ends an expression
            raise InputError(
                f"')' at character {self.tokens[self.place].at} has no '(' before it: remove it or add one"
            )
        return expression

    def _next(self) -> str:
        return self.tokens[self.place].kind if self.place < len(self.tokens) else ""

    def _or(self, depth: int) -> Expression:
        operands = [self._and(depth)]
        while self._next() == "OR":
            self.place += 1
            operands.append(self._and(depth))
        return operands[0] if len(operands) == 1 else Joined("OR", tuple(operands))

    def _and(self, depth: int) -> Expression:
        operands = [self._not(depth)]
        while self._next() in ("AND", "NOT", "(", "word"):
            self.place += self._next() == "AND"
            operands.append(self._not(depth))
        return operands[0] if len(operands) == 1 else Joined("AND", tuple(operands))

    def _not(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise InputError(f"the query is nested deeper than {MAX_DEPTH} levels: write it with fewer parentheses")
        kind = self._next()
        if kind not in ("NOT", "(", "word"):
            raise self._missing()
        token = self.tokens[self.place]
        self.place += 1
        if kind == "NOT":
            return Not(self._not(depth + 1))
        if kind == "word":
            return self._word(token)
        expression = self._or(depth + 1)
        if self._next() != ")":
            raise InputError(f"'(' at character {token.at} is not closed: add a ')'")
        self.place += 1
        return expression

    def _word(self, token: _Token) -> Expression:
        words = tuple(Word(word) for word in self.analyze(token.text))
        if not words:
            raise InputError(f"{token.text!r} at character {token.at} has no word after analysis: remove or replace it")
        return words[0] if len(words) == 1 else Joined("AND", words)

    def _missing(self) -> InputError:
        """Return the error for an operand that is missing at the current place."""
        before = self.tokens[self.place - 1] if self.place else None
        if before is None:
            found = self.tokens[0]
            if found.kind == ")":
                return InputError(f"')' at character {found.at} has no '(' before it: remove it or add one")
            return InputError(f"{found.text} at character {found.at} has no word before it: add one or remove it")
        if before.kind == "(" and self._next() == "":
            return InputError(f"'(' at character {before.at} is not closed: add a ')'")
        what = "the parenthesis" if before.kind == "(" else before.text
        return InputError(f"{what} at character {before.at} has no word after it: add one or remove it")
