"""The form in which equal queries are recognised: the same in Python and in SQL."""

from __future__ import annotations

import sys

from reranker.text.query_keys import WHITE_SPACE, query_key, query_key_sql
from tests.engines.policy import library

SAME = ["Red Boot", "red  boot", " RED\tboot ", "red\u3000\nboot", "red boot"]
WORDS = [
    *SAME,
    "",
    " ",
    "\u3000",
    "a" + " " * 1000 + "b",
    "ΟΔΟΣ",
    "οδος ΣΑΣ",
    "İstanbul",
    "Straße",
    "ẞ",
    "'; -- $x \\ %",
]


def every_character() -> list[str]:
    """Return each character but NUL and the surrogates, between letters, and the texts of `WORDS`."""
    codes = [code for code in range(2, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    return [*WORDS, *(f"A{chr(code)}b" for code in codes)]


def test_case_and_white_space_do_not_matter() -> None:
    assert {query_key(text) for text in SAME} == {"red boot"}
    assert query_key("ΟΔΟΣ") == query_key("οδος") == query_key("Οδοσ")
    assert query_key("İstanbul") == query_key("ISTANBUL") == "istanbul"
    assert query_key("redboot") != query_key("red boot") and query_key("cafe") != query_key("café")


def test_white_space_is_where_texts_are_split() -> None:
    assert WHITE_SPACE == "".join(char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace())


def test_duckdb_gives_the_same_keys_for_every_character() -> None:
    texts = every_character()
    connection = library("duckdb").connect(":memory:")
    text = f"SELECT t, {query_key_sql('t')} FROM (SELECT UNNEST(?::VARCHAR[]) AS t)"  # noqa: S608 - our own expression
    found = connection.execute(text, [texts]).fetchall()
    assert len(found) == len(texts)
    assert [(text, key) for text, key in found if key != query_key(text)] == []
