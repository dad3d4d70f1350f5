"""Tokens of many texts by an engine's own analysis chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reranker.engines.rest_client import RestClient
from reranker.engines.rest_errors import unusable
from reranker.engines.wire import quoted
from reranker.errors import EngineRejected

BATCH_UNITS = 9_000
"""UTF-16 units a request: an engine makes at most 10,000 tokens a request (``index.analyze.max_token_count``)."""


def analyze_texts(client: RestClient, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each text, in order.

    An engine answers one flat list for several texts; offsets, which run on from text to text with one unit between,
    tell which text a token came from. Long texts are cut at white space to stay under the engine's limit.

    Raises
    ------
    EngineRejected
        The index has no such field (an engine would silently use its default analyzer).
    """
    _check_field(client, index, field)
    tokens: list[list[str]] = [[] for _ in texts]
    for group in _groups(texts):
        answers = _tokens(client, index, field, [piece for _, piece in group])
        for (place, _), part in zip(group, answers, strict=True):
            tokens[place] += part
    return tokens


def _check_field(client: RestClient, index: str, field: str) -> None:
    answer = client.call("GET", f"/{quoted(index)}/_mapping/field/{quoted(field)}")
    if not any(told.get("mappings") for told in answer.values()):
        raise EngineRejected(
            f"index {index!r} has no field {field!r} to analyse with; see its mapping",
            engine=client.dialect.kind,
            status=400,
        )


def units(text: str) -> int:
    """Return the length of a text in UTF-16 units, in which engines count offsets."""
    return len(text) + sum(char > "\uffff" for char in text)


def _groups(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield (place of the text, piece) in groups of at most `BATCH_UNITS`."""
    group: list[tuple[int, str]] = []
    size = 0
    for place, text in enumerate(texts):
        for piece in pieces(text):
            length = units(piece) + 1
            if group and size + length > BATCH_UNITS:
                yield group
                group, size = [], 0
            group.append((place, piece))
            size += length
    if group:
        yield group


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most about half a batch, cut at white space where there is some."""
    most = BATCH_UNITS // 2
    start = 0
    while len(text) - start > most:
        cut = max(text.rfind(" ", start + 1, start + most), text.rfind("\n", start + 1, start + most))
        end = cut if cut > start else start + most
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _tokens(client: RestClient, index: str, field: str, texts: list[str]) -> list[list[str]]:
    answer = client.call("POST", f"/{quoted(index)}/_analyze", {"field": field, "text": texts})
    told = answer.get("tokens")
    if not isinstance(told, list):
        raise unusable(client.dialect.kind, f"POST /{index}/_analyze", "no list of tokens")
    split = _by_offset(texts, told)
    if split is not None:
        return split
    # A chain whose offsets do not run through (some filters move them): one text a request.
    return [_words(client.call("POST", f"/{quoted(index)}/_analyze", {"field": field, "text": text})) for text in texts]


def _words(answer: Mapping[str, Any]) -> list[str]:
    return [str(token["token"]) for token in answer["tokens"]]


def _by_offset(texts: list[str], tokens: list[dict[str, Any]]) -> list[list[str]] | None:
    """Return the tokens of each text, or None where an offset lies in no text or across two."""
    bounds = []
    start = 0
    for text in texts:
        end = start + units(text)
        bounds.append((start, end))
        start = end + 1
    found: list[list[str]] = [[] for _ in texts]
    place = 0
    for token in tokens:
        first, last = int(token["start_offset"]), int(token["end_offset"])
        while place < len(bounds) and first > bounds[place][1]:
            place += 1
        if place == len(bounds) or first < bounds[place][0] or last > bounds[place][1]:
            return None
        found[place].append(str(token["token"]))
    return found
