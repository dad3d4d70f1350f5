"""The rule that cuts words: known answers in several scripts, then properties, then hostile texts."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.text.analyzers import MAX_WORD_CHARS, japanese_runs, normalised, words


def cut(text: str) -> list[str]:
    return words(normalised(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello, World!", ["hello", "world"]),
        ("part AB-1234 or AB1234", ["part", "ab", "1234", "or", "ab1234"]),
        ("UWOP_PUSH_NONVOL std::vector<int>", ["uwop_push_nonvol", "std", "vector", "int"]),
        ("don't 3.14", ["don", "t", "3", "14"]),
        ("Straße NAÏVE", ["straße", "naïve"]),
        ("cafe\u0301", ["café"]),  # NFD meets NFC
        ("ＡＢ１２ ﬁne ﾃﾞｰﾀ", ["ab12", "fine", "データ"]),  # compatibility forms meet plain ones
        ("re\u00adrank zero\u200bwidth می\u200cروم", ["rerank", "zero", "width", "میروم"]),
        ("標準 カタカナ ひら", ["標", "準", "カタカナ", "ひ", "ら"]),
        ("C言語2", ["c", "言", "語", "2"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are marks, and stay in the word
        ("한국어 텍스트", ["한국어", "텍스트"]),
        ("ΣΊΣΥΦΟΣ", ["σίσυφος"]),
        ("a\x00b\ud800c\udfffd", ["a", "b", "c", "d"]),
        ("\ufeffbom 😀 emoji", ["bom", "emoji"]),
    ],
)
def test_known_words(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_case_is_kept_on_request() -> None:
    assert words(normalised("Ab ÀB", lowercase=False)) == ["Ab", "ÀB"]


@pytest.mark.parametrize("character", ["x", "é"])
def test_a_word_longer_than_the_limit_is_cut(character: str) -> None:
    assert [len(word) for word in cut(character * (2 * MAX_WORD_CHARS + 1))] == [MAX_WORD_CHARS, MAX_WORD_CHARS, 1]


@given(st.lists(st.integers(0, 700), min_size=1, max_size=6))
def test_plain_words_of_any_length_are_cut_by_the_rule(lengths: list[int]) -> None:
    text = " ".join("x" * length for length in lengths)
    assert cut(text) == re.findall(r"\w{1,255}", text)


def test_japanese_script_comes_in_runs() -> None:
    runs = japanese_runs(normalised("C言語のデバイス driver_2 です"))
    assert [run for run, _ in runs] == ["c", "言語のデバイス", "driver_2", "です"]
    assert [is_japanese for _, is_japanese in runs] == [False, True, False, True]


@given(st.text())
def test_words_hold_letters_digits_marks_and_underscores_only(text: str) -> None:
    for word in cut(text):
        assert 0 < len(word) <= MAX_WORD_CHARS
        assert all(char == "_" or char.isalnum() or _is_mark_or_new_ideograph(char) for char in word)


def _is_mark_or_new_ideograph(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "M" or (category == "Cn" and ord(char) >= 0x20000)


@given(st.text())
def test_no_letter_or_digit_is_lost(text: str) -> None:
    expected = [char for char in normalised(text) if char.isalnum()]
    assert [char for word in cut(text) for char in word if char.isalnum()] == expected


@given(st.text(st.characters(codec="ascii")))
def test_plain_texts_are_cut_alike_by_the_quick_and_the_general_way(text: str) -> None:
    assert cut(text + " é")[:-1] == cut(text)


@given(st.text())
def test_canonically_equal_texts_give_equal_words(text: str) -> None:
    assert cut(unicodedata.normalize("NFD", text)) == cut(unicodedata.normalize("NFC", text))


def test_long_runs_of_marks_do_not_take_quadratic_time() -> None:
    text = "a" + "\u0301\u0316" * 100_000
    start = time.process_time()
    assert cut(text)
    assert time.process_time() - start < 2.0  # normalised in one piece it takes some 20 s
