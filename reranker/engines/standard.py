"""Words as Lucene's `standard` analyzer makes them (Unicode text segmentation, lower-cased), for embedded engines.

The rules kept of Unicode Standard Annex 29: letters, digits, marks and underscores run together; an apostrophe, full
stop, colon or middle dot joins two letters, a full stop, comma, semicolon or apostrophe joins two digits; ideographs
and hiragana stand alone; katakana runs, and so do the scripts of South East Asia. Words longer than 255 characters are
cut, as Lucene cuts them. Not kept: Lucene makes words of emoji, and halves of a word at an apostrophe in Hebrew.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

MAX_WORD_CHARS = 255
"""Length at which Lucene's standard tokenizer cuts a word."""

_ASCII = re.compile(r"[0-9A-Za-z_]+(?:(?:(?<=[A-Za-z])[.:'](?=[A-Za-z])|(?<=[0-9])[.,;'](?=[0-9]))[0-9A-Za-z_]+)*")
_NOT_ASCII = re.compile(r"\S*[^\x00-\x7f]\S*")
_ALONE = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_MIDDLE_LETTER = ".:'\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
_MIDDLE_DIGIT = (
    ".,;'\u037e\u0589\u060c\u060d\u066c\u07f8\u2018\u2019\u2024\u2044"
    "\ufe10\ufe14\ufe50\ufe52\ufe54\uff07\uff0c\uff0e\uff1b"
)
_SOUTH_EAST_ASIAN = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u1950-\u19c9"
    "\u1a20-\u1a5e\uaa60-\uaadf"
)
_LAST_ASSIGNED = 0x1FFFF
"""Past the supplementary multilingual plane there are only ideographs and format characters."""


def standard_tokens(text: str) -> list[str]:
    """Return the lower-cased words of ``text``, in order, repeats kept."""
    # Underscores join words; alone they are none.
    words = [word for word in _runs(text.lower()) if word.strip("_")]
    if any(len(word) > MAX_WORD_CHARS for word in words):
        words = [word[i : i + MAX_WORD_CHARS] for word in words for i in range(0, len(word), MAX_WORD_CHARS)]
    return words


def _runs(text: str) -> list[str]:
    """Return the runs of word characters; the slow pattern only sees stretches that are not ASCII."""
    if text.isascii():
        return _ASCII.findall(text)
    runs: list[str] = []
    done = 0
    for stretch in _NOT_ASCII.finditer(text):
        runs += _ASCII.findall(text, done, stretch.start())
        runs += _unicode_pattern().findall(stretch.group())
        done = stretch.end()
    return runs + _ASCII.findall(text, done)


@cache
def _unicode_pattern() -> re.Pattern[str]:
    """Return the pattern for any text, made on first use: `re` knows no Unicode categories."""
    extend = _ranges({"Mn", "Mc", "Me", "Cf"})
    digit = _ranges({"Nd"})
    # Of the characters Python calls words, the other numbers (superscripts, circled digits) are no letters.
    one_letter = rf"[^\W\d_{_ALONE}{_KATAKANA}{_SOUTH_EAST_ASIAN}{_ranges({'No'})}]"
    letter = rf"{one_letter}[{extend}]*"
    number = rf"[{digit}][{extend}]*"
    kana = rf"[{_KATAKANA}][{extend}]*"
    unit = rf"(?:{letter}|{number}|_[{extend}]*)"
    before_letter, before_digit = rf"(?={one_letter})", rf"(?=[{digit}])"
    by_letters = rf"{letter}(?:[{_MIDDLE_LETTER}][{extend}]*{before_letter})?"
    by_digits = rf"{number}(?:[{_MIDDLE_DIGIT}][{extend}]*{before_digit})?"
    run = rf"(?:{by_letters}|{by_digits}|_[{extend}]*)"
    kana_run = rf"(?:{kana}|_[{extend}]*)*{kana}(?:{kana}|_[{extend}]*)*"
    asian = rf"[{_SOUTH_EAST_ASIAN}][{_SOUTH_EAST_ASIAN}{extend}]*"
    return re.compile(rf"{kana_run}|{asian}|[{_ALONE}][{extend}]*|{run}*{unit}")


def _ranges(categories: set[str]) -> str:
    """Return the inside of a character class that holds every character of these categories."""
    runs: list[list[int]] = []
    for point in range(min(sys.maxunicode, _LAST_ASSIGNED) + 1):
        if unicodedata.category(chr(point)) in categories:
            if runs and runs[-1][1] == point - 1:
                runs[-1][1] = point
            else:
                runs.append([point, point])
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in runs)
