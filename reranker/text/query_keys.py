"""The form in which equal queries are recognised, in Python and in SQL: upper and lower case and white space are equal.

Clicks are counted, training queries are recognised, and judged queries are merged by this form.
"""

from __future__ import annotations

from typing import Final

WHITE_SPACE: Final = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The characters at which `str.split` splits."""


def query_key(text: str) -> str:
    """Return a query text in the form in which equal queries are recognised: in lower case, with single spaces.

    ``İ`` becomes ``i`` and ``ς`` becomes ``σ``, because programs differ in how they lower ``İ`` and a final ``Σ``.
    """
    return " ".join(text.replace("İ", "i").lower().replace("ς", "σ").split())


def query_key_sql(column: str) -> str:
    """Return the SQL expression for `query_key` of a column.

    It requires texts without the control character U+0001; an imported log contains no control characters.
    """
    spaced = f"TRANSLATE({column}, 'İ{WHITE_SPACE}', 'i{' ' * len(WHITE_SPACE)}')"
    lower = f"REPLACE(LOWER({spaced}), 'ς', 'σ')"
    # Of a run of spaces only the first remains: the mark after each space is removed together with the next space.
    marked = f"REPLACE({lower}, ' ', ' ' || CHR(1))"
    return f"TRIM(REPLACE(REPLACE({marked}, CHR(1) || ' ', ''), CHR(1), ''))"
