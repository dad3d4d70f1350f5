r"""The words that a query asks for, if the engine reads it by a syntax: ``red -boot`` asks for ``red``, not ``boot``.

Two clauses have a syntax. ``simple_query_string`` accepts every text; it is read here as by Lucene's
``SimpleQueryParser``. ``query_string`` refuses what is not in its grammar, that of Lucene's classic ``QueryParser``.
Words are left out if they are negated, or only a part of a word (``boo*``), a pattern, or a bound of a range. Field
names, operators, boosts and distances are no words. A word behind a field name is one: ``title:red`` asks for ``red``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reranker.errors import InputError

SYNTAX_CLAUSES: Final = ("query_string", "simple_query_string")
"""Clauses whose text has a syntax."""
MAX_LEVELS: Final = 50
"""Deepest nesting of parentheses that is read."""
SIMPLE_FLAGS: Final = frozenset(
    {"AND", "OR", "NOT", "PREFIX", "PHRASE", "PRECEDENCE", "ESCAPE", "WHITESPACE", "FUZZY", "NEAR"}
)
"""Values of ``flags`` that enable one operator each; SLOP is another name of NEAR."""
_BLANK: Final = " \t\n\r"


class UnreadableQueryError(InputError):
    """The words that a query asks for are not certain."""


def asked_text(template: Mapping[str, Any], query: str, place: str) -> str:
    """Return the words of a query that a search asks for, separated by spaces.

    This is the query itself unless a clause of ``template`` with a syntax contains ``place``, in the place of the query
    text. Raises `UnreadableQueryError` if its syntax cannot be read with certainty.
    """
    readings = {_read(kind, clause, query) for kind, clause in _clauses(template, place)}
    if len(readings) > 1:
        raise UnreadableQueryError("clauses of the body read the query by different syntaxes, with different words")
    return readings.pop() if readings else query


def may_have_syntax(template: Mapping[str, Any], place: str) -> bool:
    """Return False if the words that every query of a template asks for are the query itself (`asked_text`)."""
    try:
        return any(True for _ in _clauses(template, place))
    except UnreadableQueryError:
        return True


def has_syntax(clause: str, options: Mapping[str, Any]) -> bool:
    """Return whether a clause with these options reads its text by a syntax."""
    return clause in SYNTAX_CLAUSES and options.get("escape") is not True and options.get("flags") not in ("NONE", 0)


def _clauses(node: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (name, options) of every clause with a syntax whose text contains ``place``."""
    for name, value in node.items() if isinstance(node, Mapping) else (("", item) for item in _items(node)):
        if name in SYNTAX_CLAUSES and isinstance(value, Mapping):
            text = value.get("query")
            if isinstance(text, str) and place in text and has_syntax(name, value):
                _check_place(text, place)
                yield name, value
        else:
            yield from _clauses(value, place)


def _items(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []


def _check_place(text: str, place: str) -> None:
    """Raise `UnreadableQueryError` if a template negates the query text, or has it inside of a pattern or range."""
    before, _, after = text.partition(place)
    if re.search(r"(?:[-!]|\bNOT\s)[\s(\"]*$", before) or re.search(r"[\[{/][^\]}/]*$", before) or place in after:
        raise UnreadableQueryError("the body negates the query, or has it in a pattern, in a range or twice")


def _read(kind: str, options: Mapping[str, Any], query: str) -> str:
    if kind == "query_string":
        return " ".join(_Classic(query).words())
    return " ".join(_Simple(query, _flags_of(options.get("flags", "ALL"))).words(0, len(query)))


def _flags_of(flags: Any) -> frozenset[str]:
    """Return the enabled operators of ``simple_query_string``."""
    names = {name.strip().upper() for name in flags.split("|")} if isinstance(flags, str) else {flags}
    if names & {"ALL", -1}:
        return SIMPLE_FLAGS
    names = {"NEAR" if name == "SLOP" else name for name in names} - {"NONE"}
    if not names <= SIMPLE_FLAGS:
        raise UnreadableQueryError(f"flags of simple_query_string are {flags!r:.80}: use their names")
    return frozenset(str(name) for name in names)


@dataclass(slots=True)
class _Simple:
    """Reader of ``simple_query_string``, which has no invalid texts: an operator out of place is ignored."""

    text: str
    flags: frozenset[str]
    level: int = 0

    def _is(self, at: int, char: str, flag: str) -> bool:
        return at < len(self.text) and self.text[at] == char and flag in self.flags

    def words(self, at: int, end: int) -> list[str]:
        """Return the words that a part of the text asks for."""
        found: list[str] = []
        negated = False
        while at < end:
            if self._is(at, "-", "NOT"):
                # Two in a row cancel each other out.
                negated, at = not negated, at + 1
                continue
            if self._is(at, "(", "PRECEDENCE"):
                part, at = self._group(at + 1, end)
            elif self._is(at, '"', "PHRASE"):
                part, at = self._phrase(at + 1, end)
            elif self._is_ignored(at):
                part, at = [], at + 1
            else:
                part, at = self._word(at, end)
            found += [] if negated else part
            negated = False  # even a blank ends the effect of a minus sign
        return found

    def _is_ignored(self, at: int) -> bool:
        operators = self._is(at, ")", "PRECEDENCE") or self._is(at, "+", "AND") or self._is(at, "|", "OR")
        return operators or (self.text[at] in _BLANK and "WHITESPACE" in self.flags)

    def _closing(self, at: int, end: int, opening: str, closing: str) -> int:
        """Return the position of the closing character; ``end`` if there is none."""
        depth, escaped = 1, False
        while at < end:
            char = self.text[at]
            if escaped:
                escaped = False
            elif char == "\\" and "ESCAPE" in self.flags:
                escaped = True
            elif char == closing:
                depth -= 1
                if not depth:
                    return at
            elif char == opening:
                depth += 1
            at += 1
        return end

    def _group(self, start: int, end: int) -> tuple[list[str], int]:
        close = self._closing(start, end, "(", ")")
        if close == end:
            return [], start
        self.level += 1
        if self.level > MAX_LEVELS:
            raise UnreadableQueryError(f"the query has more than {MAX_LEVELS} levels of parentheses")
        found = self.words(start, close)
        self.level -= 1
        return found, close + 1

    def _phrase(self, start: int, end: int) -> tuple[list[str], int]:
        close = self._closing(start, end, "", '"')
        if close == end:
            return [], start
        text = self.text[start:close]
        at = close + 1
        if self._is(at, "~", "NEAR") and at < end:
            at = self._after_distance(at, end)
        return self._unescaped(text).split(), at

    def _unescaped(self, text: str) -> str:
        return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) if "ESCAPE" in self.flags else text

    def _ends_word(self, at: int) -> bool:
        return self._is(at, '"', "PHRASE") or self._is(at, "(", "PRECEDENCE") or self._is_ignored(at)

    def _after_distance(self, at: int, end: int) -> int:
        at += 1
        while at < end and not self._ends_word(at):
            at += 1
        return at

    def _word(self, at: int, end: int) -> tuple[list[str], int]:
        copied, is_part = "", False
        while at < end:
            if self._is(at, "\\", "ESCAPE"):
                at += 1
                is_part = False
                if at == end:
                    break
            elif self._ends_word(at):
                break
            elif copied and self._is(at, "~", "FUZZY"):
                return copied.split(), self._after_distance(at, end)
            else:
                is_part = bool(copied) and self._is(at, "*", "PREFIX")
            copied += self.text[at]
            at += 1
        return ([] if is_part else copied.split()), at


_CLASSIC = re.compile(
    r"""
    (?P<blank> [\ \t\n\r\u3000]+)
  | (?P<bare> [-+!] [\ \t\n\r\u3000])
  | (?P<phrase> " (?P<inner> (?:[^"\\]|\\.)* ) ")
  | (?P<range> [\[{] (?:[^\]}"]|"(?:[^"\\]|\\.)*")* [\]}])
  | (?P<pattern> / (?:[^/\\]|\\.)* /)
  | (?P<negation> NOT(?![^\ \t\n\r\u3000!():^\[\]"{}~/]) | !)
  | (?P<operator> (?:AND|OR)(?![^\ \t\n\r\u3000!():^\[\]"{}~/]) | && | \|\|)
  | (?P<required> \+)
  | (?P<minus> -)
  | (?P<open> \()
  | (?P<close> \))
  | (?P<boost> \^ [0-9]+ (?:\.[0-9]+)?)
  | (?P<distance> ~ (?:[0-9]+ (?:\.[0-9]+)?)?)
  | (?P<colon> :)
  | (?P<word> (?: [^\ \t\n\r\u3000+\-!():^\[\]"{}~\\/] | \\. ) (?: [^\ \t\n\r\u3000!():^\[\]"{}~\\/] | \\. )*)
    """,
    re.VERBOSE | re.DOTALL,
)
_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*[*?]", re.DOTALL)


@dataclass(slots=True)
class _Classic:
    """Reader of ``query_string``: a clause is a word, phrase, range, pattern or group, with modifiers before it.

    A modifier with a blank after it is a clause that asks for nothing.
    """

    text: str
    found: list[str] = field(default_factory=list)
    negated_at: list[bool] = field(default_factory=list)
    """For each open group, whether it is negated."""
    negates: bool = False
    """Whether the next clause is negated."""
    expects: bool = False
    """Whether a clause must follow."""

    def words(self) -> list[str]:
        """Return the words that the text asks for; raises `UnreadableQueryError` if it is not in the grammar."""
        at = 0
        while at < len(self.text):
            token = _CLASSIC.match(self.text, at)
            if token is None:
                raise UnreadableQueryError(f"query_string does not accept {self.text[at]!r:.10} at position {at}")
            at = self._take(token)
            if len(self.negated_at) > MAX_LEVELS:
                raise UnreadableQueryError(f"the query has more than {MAX_LEVELS} levels of parentheses")
        if self.negated_at or self.expects:
            raise UnreadableQueryError("the query ends in the middle of an expression")
        return self.found

    def _take(self, token: re.Match[str]) -> int:
        """Read a token and return where the next one starts."""
        kind, end = str(token.lastgroup), token.end()
        if kind in ("negation", "minus"):
            self.negates = self.expects = True
        elif kind in ("required", "operator"):
            self.expects = True
        elif kind == "open":
            self.negated_at.append(self.negates)
            self.negates, self.expects = False, True
        elif kind == "close":
            if not self.negated_at or self.expects:
                raise UnreadableQueryError("a parenthesis is closed that is not open, or is empty")
            self.negated_at.pop()
        elif kind == "word" and end < len(self.text) and self.text[end] == ":":
            self.expects = True
            return self._field(token[0], end + 1)
        elif kind == "colon":
            raise UnreadableQueryError("the query has a colon without a field name before it")
        elif kind in ("word", "phrase", "range", "pattern", "bare"):
            self._clause(kind, token)
        return end

    def _field(self, name: str, at: int) -> int:
        """Skip the whole clause of ``_exists_``, whose value is a field name."""
        if name != "_exists_":
            return at
        token = _CLASSIC.match(self.text, at)
        if token is None or token.lastgroup not in ("word", "phrase"):
            raise UnreadableQueryError("the query has _exists_ without a field name")
        self.negates = self.expects = False
        return token.end()

    def _clause(self, kind: str, token: re.Match[str]) -> None:
        is_asked = not self.negates and not any(self.negated_at)
        self.negates = self.expects = False
        text = token["inner"] if kind == "phrase" else token[0]
        # A word that begins with < or > is the bound of a range.
        is_whole = kind == "phrase" or (kind == "word" and not _WILDCARD.match(text) and text[0] not in "<>")
        if is_asked and is_whole:
            self.found += re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL).split()
