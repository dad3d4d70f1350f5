"""Robots by the name they give: the user agents that the list of crawler-user-agents knows."""

from __future__ import annotations

import re
from functools import cache

from reranker.errors import MissingExtra

MAX_AGENT_CHARS = 512
_MAX_KNOWN = 50_000
_ESCAPED = re.compile(r"\\(.)")
_META = re.compile(r"\\.|[\\^$*+?{}\[\]|().]")


class Robots:
    """Tells robots by their user agent; each different agent is looked at once.

    Raises
    ------
    MissingExtra
        Without the package crawler-user-agents.
    """

    def __init__(self) -> None:
        self._literals, self._patterns = _list()
        self.known: dict[str, str] = {"": ""}

    def name(self, agent: str) -> str:
        """Return the name of the robot that a user agent states, or an empty string for one that is not listed."""
        found = self.known.get(agent)
        if found is None:
            if len(self.known) >= _MAX_KNOWN:
                self.known.clear()
            found = self.known[agent] = self._look_up(agent[:MAX_AGENT_CHARS])
        return found

    def _look_up(self, agent: str) -> str:
        literal = next((one for one in self._literals if one in agent), None)
        if literal is not None:
            return literal.strip(" /")
        return next((name for pattern, name in self._patterns if pattern.search(agent)), "")


@cache
def _list() -> tuple[tuple[str, ...], tuple[tuple[re.Pattern[str], str], ...]]:
    """Return the list's patterns: those that are plain text, which is found far faster, and the others with a name."""
    try:
        import crawleruseragents
    except ImportError as error:
        raise MissingExtra("crawleruseragents", "clicks") from error
    literals, patterns = [], []
    for robot in crawleruseragents.CRAWLER_USER_AGENTS_DATA:
        pattern = str(robot["pattern"])
        plain = _ESCAPED.sub(lambda found: "" if found[1].isalnum() else found[1], pattern)
        if all(not found[1:].isalnum() and len(found) == 2 for found in _META.findall(pattern)):
            literals.append(plain)
        else:
            name = re.sub(r"[^\w -]+", " ", _META.sub(" ", pattern)).strip()
            patterns.append((re.compile(pattern), " ".join(name.split()) or "robot"))
    return tuple(literals), tuple(patterns)
