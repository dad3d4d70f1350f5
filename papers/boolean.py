"""Boolean retrieval: AND, OR and NOT over an inverted file; a document matches or it does not (spec B17)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.inverted_file import InvertedFile
from papers.study_rows import Floats, all_products, binary, check_pairs, check_widths, pair_products
from reranker.errors import ConfigError, InputError

MAX_DEPTH = 100
"""Parentheses and NOTs inside each other, at most."""
MAX_CONJUNCTS = 10_000
"""Conjuncts that `disjunctive_form` writes out, at most."""

_TOKEN = re.compile(r'\s*(?:([()])|"([^"]*)"|([^\s()"]+))')
_OPERATORS = ("AND", "OR", "NOT")


@dataclass(frozen=True, slots=True)
class Word:
    """The documents that hold a word."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """The documents that the part does not match."""

    part: Expression


@dataclass(frozen=True, slots=True)
class And:
    """The documents that all parts match."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """The documents that some part matches."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = Word | Not | And | Or
Conjunct: TypeAlias = frozenset[tuple[str, bool]]
"""Words with True (must be there) or False (must not)."""


def parse(query: str) -> Expression:
    """Return the expression of a query such as ``prog AND lang AND (C OR java)``.

    NOT binds tighter than AND, AND tighter than OR. Operators are written in capitals; a word that looks like one, or
    holds spaces or parentheses, is put in double quotes.

    Raises
    ------
    InputError
        For a query that is not such an expression; the message says where and what was expected.
    """
    parser = _Parser(_tokens(query), query)
    expression = parser.disjunction(0)
    parser.expect_end()
    return expression


def disjunctive_form(expression: Expression) -> tuple[Conjunct, ...]:
    """Return the query as an OR of ANDs of words and negated words, contradictions left out.

    A document matches the query if and only if it satisfies some conjunct: the course's definition.

    Raises
    ------
    InputError
        If there are more than `MAX_CONJUNCTS` conjuncts.
    """
    found = _conjuncts(expression, True)
    consistent = {one for one in found if not any((word, not wanted) in one for word, wanted in one)}
    return tuple(sorted(consistent, key=sorted))


@dataclass(frozen=True)
class BooleanRetrieval:
    """Answers Boolean queries over an inverted file.

    Parameters
    ----------
    file : InvertedFile
        Of the documents.
    word_numbers : mapping of str to int
        Number of each word in the file; words that are missing here are in no document.
    """

    file: InvertedFile
    word_numbers: Mapping[str, int]

    def search(self, query: str | Expression) -> npt.NDArray[np.int32]:
        """Return the numbers of the matching documents, ascending.

        Raises
        ------
        InputError
            If the query cannot be parsed.
        """
        expression = parse(query) if isinstance(query, str) else query
        return np.flatnonzero(self._matches(expression)).astype(np.int32)

    def scores(self, queries: Sequence[str]) -> Floats:
        """Return 1 for each document that matches and 0 for the others, (n_queries, n_documents) float32.

        Raises
        ------
        InputError
            If a query cannot be parsed.
        """
        out = np.zeros((len(queries), self.file.n_documents), np.float32)
        for row, query in enumerate(queries):
            out[row, self.search(query)] = 1.0
        return out

    def _matches(self, expression: Expression) -> npt.NDArray[np.bool_]:
        """Return whether each document matches."""
        if isinstance(expression, Not):
            return ~self._matches(expression.part)
        if isinstance(expression, And | Or):
            combine = np.logical_and if isinstance(expression, And) else np.logical_or
            matched = self._matches(expression.parts[0])
            for part in expression.parts[1:]:
                combine(matched, self._matches(part), out=matched)
            return matched
        matched = np.zeros(self.file.n_documents, np.bool_)
        if (number := self.word_numbers.get(expression.text)) is not None:
            matched[self.file.postings(number)[0]] = True
        return matched


@dataclass(frozen=True, slots=True)
class BooleanScorer:
    """Scores texts as Boolean queries: 1 if the document holds all (AND) or any (OR) of the query's words, else 0.

    A query without words has no condition: all documents satisfy AND, none satisfies OR.

    Raises
    ------
    ConfigError
        For another operator.

    Source: spec B17.
    """

    operator: Literal["AND", "OR"] = "AND"

    def __post_init__(self) -> None:
        if self.operator not in ("AND", "OR"):
            raise ConfigError(f"operator {self.operator!r} is not known: choose AND or OR")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return 1 or 0 for every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        words = binary(q_rows)
        shared = all_products(words, binary(d_rows))
        needed = np.diff(words.indptr)[:, None] if self.operator == "AND" else 1
        return np.asarray(shared >= needed, dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return 1 or 0 for query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        check_pairs(q_rows, d_rows)
        words = binary(q_rows)
        shared = pair_products(words, binary(d_rows))
        needed = np.diff(words.indptr) if self.operator == "AND" else 1
        return np.asarray(shared >= needed, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of a query: an operator, a parenthesis or a word."""

    kind: str
    text: str
    place: int


def _tokens(query: str) -> list[_Token]:
    """Return the pieces of a query."""
    tokens, place = [], 0
    while query[place:].strip():
        match = _TOKEN.match(query, place)
        if match is None:
            raise InputError(f"query {query!r} has a double quote without its end at character {place + 1}: close it")
        bracket, quoted, plain = match.groups()
        start = match.end() - len(match.group().lstrip()) + 1
        if bracket:
            tokens.append(_Token(bracket, bracket, start))
        elif plain in _OPERATORS:
            tokens.append(_Token(plain, plain, start))
        else:
            tokens.append(_Token("word", quoted if plain is None else plain, start))
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent over the pieces of a query."""

    def __init__(self, tokens: list[_Token], query: str) -> None:
        self.tokens = tokens
        self.query = query
        self.next = 0

    def disjunction(self, depth: int) -> Expression:
        """Return conjunctions joined by OR."""
        parts = [self.conjunction(depth)]
        while self._take("OR"):
            parts.append(self.conjunction(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self, depth: int) -> Expression:
        """Return factors joined by AND."""
        parts = [self.factor(depth)]
        while self._take("AND"):
            parts.append(self.factor(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def factor(self, depth: int) -> Expression:
        """Return a word, a negated factor or an expression in parentheses."""
        if depth > MAX_DEPTH:
            raise InputError(f"the query has more than {MAX_DEPTH} parentheses or NOTs inside each other: write fewer")
        if self._take("NOT"):
            return Not(self.factor(depth + 1))
        if self._take("("):
            inside = self.disjunction(depth + 1)
            if not self._take(")"):
                raise self._problem("a closing parenthesis, AND or OR")
            return inside
        if (token := self._take("word")) is None:
            raise self._problem("a word, NOT or an opening parenthesis")
        return Word(token.text)

    def expect_end(self) -> None:
        """Refuse pieces after the end of the expression."""
        if self.next < len(self.tokens):
            raise self._problem("AND, OR or the end")

    def _take(self, kind: str) -> _Token | None:
        """Return the next piece and move on if it is of this kind."""
        if self.next < len(self.tokens) and self.tokens[self.next].kind == kind:
            self.next += 1
            return self.tokens[self.next - 1]
        return None

    def _problem(self, expected: str) -> InputError:
        """Return the error of an unexpected piece."""
        if self.next == len(self.tokens):
            found = "the query ends"
        else:
            token = self.tokens[self.next]
            found = f"{token.text!r} stands at character {token.place}"
        return InputError(
            f"query {self.query!r} is not a Boolean expression: {found} where {expected} was expected; write words "
            f"joined by AND, OR, NOT and parentheses"
        )


def _conjuncts(expression: Expression, wanted: bool) -> set[Conjunct]:
    """Return the conjuncts of the expression, or of its negation."""
    if isinstance(expression, Word):
        return {frozenset({(expression.text, wanted)})}
    if isinstance(expression, Not):
        return _conjuncts(expression.part, not wanted)
    parts = [_conjuncts(part, wanted) for part in expression.parts]
    if isinstance(expression, Or) == wanted:
        return set().union(*parts)
    found: set[Conjunct] = {frozenset()}
    for part in parts:
        found = {left | right for left in found for right in part}
        if len(found) > MAX_CONJUNCTS:
            raise InputError(f"the query has more than {MAX_CONJUNCTS:,} conjuncts: search it without writing them out")
    return found
