"""Analyzers: their spelling, their JSON form, what each makes of a text, and what is refused."""

from __future__ import annotations

import builtins
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.errors import ConfigError, InputError, MissingExtra
from reranker.text.analyzers import KINDS, STEMMERS, AnalyzerConfig, make_analyzer, parse_analyzer
from tests.engines.policy import library


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("unicode", AnalyzerConfig()),
        ("unicode,stem=english,stop=english", AnalyzerConfig(stemmer="english", stop_words="english")),
        ("unicode,case=keep", AnalyzerConfig(lowercase=False)),
        ("unicode,bigrams,stem=english", AnalyzerConfig(stemmer="english", bigrams=True)),
        ("japanese,bigrams", AnalyzerConfig(kind="japanese", bigrams=True)),
        ("english", AnalyzerConfig(stemmer="english", stop_words="english")),
        ("german", AnalyzerConfig(stemmer="german")),
        ("japanese", AnalyzerConfig(kind="japanese")),
        ("engine:products/title.raw", AnalyzerConfig(kind="engine", engine_field="products/title.raw")),
    ],
)
def test_command_line_spelling(text: str, config: AnalyzerConfig) -> None:
    assert parse_analyzer(text) == config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "klingon",
        "unicode,stem",
        "unicode,stem=",
        "unicode,stem=klingon",
        "unicode,stem=english,stem=english",
        "unicode,case=fold",
        "unicode,colour=red",
        "unicode,stop=/no/such/file",
        "unicode,bigrams=yes",
        "unicode,bigrams,bigrams",
        "engine:",
        "engine:index",
        "engine:/field",
        "engine:index/",
        "engine",
    ],
)
def test_illegal_spellings_are_refused_with_the_legal_ones(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_analyzer(text)
    assert any(hint in str(caught.value) for hint in ("choose one of", "write", "INDEX/FIELD", "english"))


def test_unknown_values_list_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match="unicode, japanese, engine"):
        AnalyzerConfig(kind="klingon")
    with pytest.raises(ConfigError, match="finnish, french"):
        AnalyzerConfig(stemmer="klingon")


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_field": "i/f"},
        {"kind": "engine"},
        {"kind": "engine", "engine_field": "i/f", "stemmer": "english"},
        {"kind": "engine", "engine_field": "i/f", "lowercase": False},
        {"kind": "engine", "engine_field": "i/f", "bigrams": True},
        {"stop_words": "klingon"},
        {"stop_words": ("",)},
        {"stop_words": ["a"]},
        {"stop_words": (1,)},
        {"lowercase": "yes"},
        {"kind": None},
        {"stemmer": 3},
    ],
)
def test_impossible_combinations_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AnalyzerConfig(**changes)


@pytest.mark.parametrize(
    "config",
    [
        AnalyzerConfig(),
        AnalyzerConfig(kind="japanese", stop_words=("の", "です")),
        AnalyzerConfig(stemmer="english", stop_words="english", lowercase=False),
        AnalyzerConfig(kind="engine", engine_field="i/f"),
        AnalyzerConfig(bigrams=True),
    ],
)
def test_json_round_trip(config: AnalyzerConfig) -> None:
    assert AnalyzerConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "value", [{"kind": "unicode", "colour": "red"}, {"kind": []}, {"stop_words": [1]}, ["unicode"]]
)
def test_hostile_json_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        AnalyzerConfig.from_json(value)


def test_bigrams_are_made_of_what_is_left_and_follow_the_words_of_their_text() -> None:
    analyzer = make_analyzer(AnalyzerConfig(stemmer="english", stop_words="english", bigrams=True))
    assert analyzer.tokens(["Life of the insured, insured", "alone", "", "the"]) == [
        ["life", "insur", "insur", "life␣insur", "insur␣insur"],
        ["alon"],
        [],
        [],
    ]
    assert make_analyzer(AnalyzerConfig(bigrams=True)).tokens(["a␣b c"]) == [["a", "b", "c", "a␣b", "b␣c"]]


def test_a_configuration_without_bigrams_is_kept_as_before_there_were_any() -> None:
    assert "bigrams" not in AnalyzerConfig().to_json()
    assert AnalyzerConfig(bigrams=True).to_json()["bigrams"] is True
    with pytest.raises(ConfigError, match="bigrams is 'yes'"):
        AnalyzerConfig.from_json({"bigrams": "yes"})


def test_stop_words_go_before_stems_are_made() -> None:
    analyzer = make_analyzer(parse_analyzer("unicode,stem=english,stop=english"))
    assert analyzer.tokens(["The runners were running", "", "to be"]) == [["runner", "were", "run"], [], []]


def test_batches_equal_single_texts() -> None:
    texts = ["Reading books", "", "the book's readers", "x" * 1000]
    for spelling in ("unicode", "unicode,stem=english", "unicode,stop=english,case=keep"):
        analyzer = make_analyzer(parse_analyzer(spelling))
        assert analyzer.tokens(texts) == [analyzer.tokens([text])[0] for text in texts]


def test_every_listed_stemmer_exists() -> None:
    for language in STEMMERS:
        assert len(make_analyzer(AnalyzerConfig(stemmer=language)).tokens(["word", "слово"])) == 2


def test_stop_words_from_a_file_are_cut_like_texts(tmp_path: Path) -> None:
    path = tmp_path / "stop.txt"
    path.write_text("Über\r\nAB-12\n\n", encoding="utf-8-sig")
    config = parse_analyzer(f"unicode,stop={path}")
    assert config.stop_words == ("12", "ab", "über")
    assert make_analyzer(config).tokens(["ÜBER ab 12 alles"]) == [["alles"]]


def test_stop_words_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "stop.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_analyzer(f"unicode,stop={path}")


def test_stemming_works_in_many_threads_at_once() -> None:
    analyzer = make_analyzer(AnalyzerConfig(stemmer="english"))
    texts = [f"running runner{i} connections" for i in range(300)]
    expected, results = analyzer.tokens(texts), list[bool]()
    threads = [
        threading.Thread(target=lambda: results.extend(analyzer.tokens(texts) == expected for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_japanese_words_take_their_dictionary_form() -> None:
    library("fugashi")
    library("unidic_lite")
    analyzer = make_analyzer(parse_analyzer("japanese"))
    assert analyzer.tokens(["道を走った", "Ｃ言語 (ANSI)", "", "\x00走る\ud800"]) == [
        ["道", "を", "走る", "た"],
        ["c", "言語", "ansi"],
        [],
        ["走る"],
    ]


def _without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    original = builtins.__import__

    def fake(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == name:
            raise ImportError(f"No module named {name!r}", name=name)
        return original(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "fugashi")
    with pytest.raises(MissingExtra, match=r"\[japanese\]"):
        make_analyzer(parse_analyzer("japanese"))


class FakeEngine:
    """Splits at blanks, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        self.asked.extend(texts)
        return [text.split() for text in texts]


def test_an_engine_cuts_the_words_in_one_call_a_batch() -> None:
    engine = FakeEngine()
    analyzer = make_analyzer(parse_analyzer("engine:i/f"), engine.analyze)
    assert analyzer.tokens(["A b", "", "c\ud800d"]) == [["A", "b"], [], ["c?d"]]
    assert "".join(engine.asked).encode()  # fit to be sent


def test_an_engine_analyzer_needs_an_engine() -> None:
    with pytest.raises(ConfigError, match="--engine"):
        make_analyzer(parse_analyzer("engine:i/f"))


def test_half_an_answer_of_an_engine_is_refused() -> None:
    analyzer = make_analyzer(parse_analyzer("engine:i/f"), lambda texts: [["a"]])
    with pytest.raises(InputError, match="answered for 1 texts, asked for 2"):
        analyzer.tokens(["a", "b"])


def test_the_help_and_the_refusal_list_every_analyzer() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_analyzer("klingon")
    shown = CliRunner().invoke(main, ["train", "--help"], env={"COLUMNS": "200"}).output
    for name in (*KINDS, *STEMMERS):
        assert name in str(caught.value) and name in shown
