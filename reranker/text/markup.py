"""HTML to plain text, in one pass and linear time, for whatever the web calls HTML."""

from __future__ import annotations

import re
from html import unescape

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]*)")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_DROPPED = frozenset({"script", "style", "template", "noscript"})
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark nobr q s samp small span strike strong "
    "sub sup time tt u var wbr".split()
)


def strip_html(text: str) -> str:
    """Return the text of an HTML fragment.

    Tags, comments and declarations go; so does the content of script, style, template and noscript. An inline tag
    (``b``, ``span``) joins what stands around it, any other separates words by a line break. Entities are decoded
    once. A ``<`` that opens no tag, comment or declaration, and a tag that is never closed, stay as text; an
    unclosed comment, script or style hides the rest, as in a browser.

    Parameters
    ----------
    text : str
        Any string; a text without ``<`` and ``&`` comes back as it is.
    """
    if "<" not in text:
        return unescape(text)
    parts: list[str] = []
    position, closed = 0, text.rfind(">")
    while (start := text.find("<", position)) >= 0:
        parts.append(text[position:start])
        end, replacement = _markup_at(text, start, closed)
        parts.append(replacement)
        position = end
    parts.append(text[position:])
    return unescape("".join(parts))


def _markup_at(text: str, start: int, closed: int) -> tuple[int, str]:
    """Return where the markup at ``start`` ends and what it leaves; ``closed`` is the place of the last ``>``."""
    if text.startswith("<!--", start):
        end = text.find("-->", start + 4)
        return (end + 3, "\n") if end >= 0 else (len(text), "\n")
    tag = _TAG.match(text, start)
    if tag is None:
        declaration = text[start + 1 : start + 2] in ("!", "?") and start < closed
        return (text.index(">", start) + 1, "\n") if declaration else (start + 1, "<")
    end = _tag_end(text, tag.end(), closed)
    if end < 0:
        return start + 1, "<"
    name = tag[1].lower()
    if name in _DROPPED and text[start + 1] != "/" and text[end - 2] != "/":
        return _after_element(text, end, name), "\n"
    return end, "" if name in _INLINE else "\n"


def _tag_end(text: str, position: int, closed: int) -> int:
    """Return the place after a tag's ``>``, quoted values skipped, or -1 where the tag is never closed."""
    if position > closed:
        return -1
    here = position
    while (found := _QUOTE_OR_END.search(text, here)) is not None:
        if found[0] == ">":
            return found.end()
        # Only a quote that opens an attribute's value hides ">"; a stray one (<a title=it's>) does not.
        opens_value = text[position : found.start()].rstrip()[-1:] == "=" if found.start() - position < 4096 else False
        close = text.find(found[0], found.end()) if opens_value else found.start()
        if close < 0:
            break
        here = close + 1
    return text.find(">", position) + 1 or -1


def _after_element(text: str, position: int, name: str) -> int:
    """Return the place after the closing tag of a dropped element, or the end of the text where there is none."""
    found = re.compile(rf"</{name}\b[^>]*>?", re.IGNORECASE).search(text, position)
    return found.end() if found else len(text)
