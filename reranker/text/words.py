"""The rule that cuts a text into words, for any script, in linear time.

1. Invisible characters inside words (soft hyphen, joiners, direction marks, byte order mark) are removed.
2. The text is brought to Unicode form NFKC (full-width, half-width and composed spellings become one) and lower-cased.
3. A word is a longest run of letters, digits, combining marks and underscores, of at most `MAX_WORD_CHARS`
   characters (a longer run is cut, as Lucene's standard tokenizer does). Everything else separates words: white
   space, punctuation, symbols, hyphens, apostrophes, NUL, and lone surrogates.
4. A Chinese character or a Hiragana is a word by itself, again as in Lucene's standard tokenizer: these scripts
   have no spaces. Katakana and Hangul runs stay whole.

So the part number ``AB-1234`` gives the words ``ab`` and ``1234``, and finds ``AB 1234``; ``UWOP_PUSH_NONVOL`` and
``a1b2`` stay one word; ``don't`` gives ``don`` and ``t``.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import groupby

MAX_WORD_CHARS = 255

_MAX_MARKS = 30  # Unicode's stream-safe limit; normalising longer runs of combining marks takes quadratic time
_ASCII_WORD = re.compile(rf"[A-Za-z0-9_]{{1,{MAX_WORD_CHARS}}}")
_ASCII_BLANKED = bytes(code if chr(code).isalnum() or code == ord("_") else ord(" ") for code in range(128)).ljust(256)
_PLAIN_WORD = re.compile(rf"\w{{1,{MAX_WORD_CHARS}}}")
_BEYOND_LATIN = re.compile("[^\x00-\u02ff]+")
_INVISIBLE = re.compile("[\u00ad\u200c-\u200f\u2060\ufeff]+")
# Whole blocks, so that characters newer than this Python's Unicode tables are words already.
_HAN = (
    "\u3005\u3007\u3021-\u3029\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0002fa1f\U00030000-\U0003347f"
)
_HIRAGANA = "\u3041-\u3096\u309d-\u309f\U0001b000-\U0001b122"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_UNSPACED = re.compile(f"[{_HAN}{_HIRAGANA}]")


def normalised(text: str, *, lowercase: bool = True) -> str:
    """Return the text without invisible characters, in NFKC, and lower-cased: steps 1 and 2 of the rule."""
    if text.isascii():
        return text.lower() if lowercase else text
    text = _INVISIBLE.sub("", text)
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", _long_mark_runs().sub(r"\1", text))
    if lowercase:
        text = text.lower()
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
    return text


def words(text: str) -> list[str]:
    """Return the words of a normalised text in order: steps 3 and 4 of the rule.

    Parameters
    ----------
    text : str
        A result of `normalised`.
    """
    if text.isascii():
        # Three times as fast as the expression, which is needed only where a word is too long.
        blanked = text.encode("ascii").translate(_ASCII_BLANKED)
        return _ASCII_WORD.findall(text) if _may_be_long(blanked) else blanked.decode("ascii").split()
    # Marks and unspaced scripts need slow expressions; most texts have at most dashes and quotes beyond Latin.
    beyond_latin = "".join(_BEYOND_LATIN.findall(text))
    if not _special().search(beyond_latin):
        return _PLAIN_WORD.findall(text)
    return (_unspaced_word() if _UNSPACED.search(beyond_latin) else _spaced_word()).findall(text)


def japanese_runs(text: str) -> list[str]:
    """Return the words of a normalised text, but each run of Japanese script (Kanji and Kana) in one piece."""
    return _japanese_run().findall(text)


def is_japanese(run: str) -> bool:
    """Return whether a piece of `japanese_runs` is written in Kanji or Kana."""
    return _japanese_start().match(run) is not None


def _may_be_long(blanked: bytes) -> bool:
    """Return False only if no word is longer than `MAX_WORD_CHARS`: such a word would fill a whole block."""
    block = (MAX_WORD_CHARS + 1) // 2
    return any(b" " not in blanked[start : start + block] for start in range(0, len(blanked) - block + 1, block))


@lru_cache(maxsize=1)
def _marks() -> str:
    """Return the inside of a character class that matches every combining mark (categories Mn, Mc, Me)."""
    codes = [code for plane in (range(0x20000), range(0xE0000, 0xE0200)) for code in plane]
    marks = [code for code in codes if unicodedata.category(chr(code))[0] == "M"]
    runs = [[code for _, code in run] for _, run in groupby(enumerate(marks), lambda pair: pair[1] - pair[0])]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)


@lru_cache(maxsize=1)
def _long_mark_runs() -> re.Pattern[str]:
    return re.compile(f"([{_marks()}]{{{_MAX_MARKS}}})[{_marks()}]+")


@lru_cache(maxsize=1)
def _special() -> re.Pattern[str]:
    return re.compile(f"[{_marks()}{_HAN}{_HIRAGANA}]")


@lru_cache(maxsize=1)
def _spaced_word() -> re.Pattern[str]:
    return re.compile(rf"[\w{_marks()}]{{1,{MAX_WORD_CHARS}}}")


@lru_cache(maxsize=1)
def _unspaced_word() -> re.Pattern[str]:
    # A mark after a Chinese character or a Hiragana (voicing, variation selectors) belongs to it.
    single = f"[{_HAN}{_HIRAGANA}][{_marks()}]{{0,{_MAX_MARKS}}}"
    other = rf"(?:(?![{_HAN}{_HIRAGANA}])[\w{_marks()}]){{1,{MAX_WORD_CHARS}}}"
    return re.compile(f"{single}|{other}")


@lru_cache(maxsize=1)
def _japanese_run() -> re.Pattern[str]:
    script = _HAN + _HIRAGANA + _KATAKANA
    run = f"[{script}][{script}{_marks()}]{{0,{MAX_WORD_CHARS - 1}}}"
    return re.compile(rf"{run}|(?:(?![{script}])[\w{_marks()}]){{1,{MAX_WORD_CHARS}}}")


@lru_cache(maxsize=1)
def _japanese_start() -> re.Pattern[str]:
    return re.compile(f"[{_HAN}{_HIRAGANA}{_KATAKANA}]")
