"""Analyzers split texts into words. The model stores one configuration, which is used wherever a text is read.

``unicode`` (the default) splits text of any script by the rule below, in linear time. ``japanese`` splits Japanese
script with MeCab. ``engine`` uses the analysis chain of a field of a search engine. The rule:
1. Invisible characters inside words (soft hyphen, joiners, direction marks, byte order mark) are removed.
2. The text is normalised to Unicode form NFKC (which unifies full-width, half-width and composed characters) and
   lower-cased.
3. A word is a longest run of letters, digits, combining marks and underscores. Runs of more than `MAX_WORD_CHARS`
   characters are split, as by Lucene's standard tokenizer. All other characters separate words: white space,
   punctuation, symbols, hyphens, apostrophes, NUL, and lone surrogates.
4. A Chinese character or a Hiragana is a word by itself, again as in Lucene's standard tokenizer, because these
   scripts have no spaces. Katakana and Hangul runs stay whole.

For example, the part number ``AB-1234`` gives the words ``ab`` and ``1234``, and finds ``AB 1234``;
``UWOP_PUSH_NONVOL`` and ``a1b2`` stay one word; ``don't`` gives ``don`` and ``t``.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import Any, Protocol

import Stemmer

from reranker.errors import ConfigError, InputError, MissingExtra

MAX_WORD_CHARS = 255

KINDS = ("unicode", "japanese", "engine")
STEMMERS = tuple(
    "arabic armenian basque catalan danish dutch english finnish french german greek hindi hungarian indonesian irish "
    "italian lithuanian nepali norwegian porter portuguese romanian russian serbian spanish swedish tamil turkish "
    "yiddish".split()
)
STOP_WORDS: Mapping[str, tuple[str, ...]] = {
    # Lucene's list (`_english_` in Elasticsearch and OpenSearch), so that reranker and engine drop the same words.
    "english": tuple(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
        "they this to was will with".split()
    )
}
_MAX_STOP_WORDS = 100_000
ANALYZER_SYNTAX = (
    "unicode[,stem=LANGUAGE][,stop=english|FILE][,case=keep][,bigrams], LANGUAGE, japanese[,stop=FILE][,bigrams], "
    "engine:INDEX/FIELD"
)
"""Spellings that `parse_analyzer` accepts."""
BETWEEN = "\u2423"
"""Separator of the two words of a bigram, as in ``life␣insurance``; no word contains it."""

_MAX_MARKS = 30  # Unicode's stream-safe limit; normalising longer runs of combining marks takes quadratic time
_ASCII_WORD = re.compile(rf"[A-Za-z0-9_]{{1,{MAX_WORD_CHARS}}}")
_ASCII_BLANKED = bytes(code if chr(code).isalnum() or code == ord("_") else ord(" ") for code in range(128)).ljust(256)
_PLAIN_WORD = re.compile(rf"\w{{1,{MAX_WORD_CHARS}}}")
_BEYOND_LATIN = re.compile("[^\x00-\u02ff]+")
_INVISIBLE = re.compile("[\u00ad\u200c-\u200f\u2060\ufeff]+")
# Whole blocks, so that characters newer than this Python's Unicode tables count as words.
_HAN = (
    "\u3005\u3007\u3021-\u3029\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0002fa1f\U00030000-\U0003347f"
)
_HIRAGANA = "\u3041-\u3096\u309d-\u309f\U0001b000-\U0001b122"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_UNSPACED = re.compile(f"[{_HAN}{_HIRAGANA}]")
_JAPANESE = re.compile(f"[{_HAN}{_HIRAGANA}{_KATAKANA}]")


def normalised(text: str, *, lowercase: bool = True) -> str:
    """Return the text without invisible characters, in NFKC, and lower-cased: steps 1 and 2 of the rule."""
    if text.isascii():
        return text.lower() if lowercase else text
    text = _INVISIBLE.sub("", text)
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", _patterns()["long_mark_run"].sub(r"\1", text))
    if lowercase:
        text = text.lower()
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
    return text


def words(text: str) -> list[str]:
    """Return the words of a normalised text in order: steps 3 and 4 of the rule."""
    if text.isascii():
        # Three times as fast as the expression, which is needed only if a word is too long.
        blanked = text.encode("ascii").translate(_ASCII_BLANKED)
        return _ASCII_WORD.findall(text) if _may_be_long(blanked) else blanked.decode("ascii").split()
    # Marks and unspaced scripts need slow expressions; beyond Latin, most texts have only dashes and quotes.
    beyond_latin = "".join(_BEYOND_LATIN.findall(text))
    if not beyond_latin or not _patterns()["special"].search(beyond_latin):
        return _PLAIN_WORD.findall(text)
    return _patterns()["unspaced_word" if _UNSPACED.search(beyond_latin) else "spaced_word"].findall(text)


def japanese_runs(text: str) -> list[tuple[str, bool]]:
    """Return the words of a normalised text, each with whether it is a whole run of Kanji and Kana."""
    return [(run, _JAPANESE.match(run) is not None) for run in _patterns()["japanese_run"].findall(text)]


def _may_be_long(blanked: bytes) -> bool:
    """Return False only if no word is longer than `MAX_WORD_CHARS`: such a word would fill a whole block."""
    block = (MAX_WORD_CHARS + 1) // 2
    return any(b" " not in blanked[start : start + block] for start in range(0, len(blanked) - block + 1, block))


def character_class(codes: Iterable[int]) -> str:
    """Return the inside of a character class of `re` with the characters of these ascending codes."""
    runs = [[code for _, code in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    return "".join(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}" for run in runs)


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Return the expressions that contain every combining mark; compiling them takes time, and few texts need them."""
    codes = [code for plane in (range(0x20000), range(0xE0000, 0xE0200)) for code in plane]
    marks = character_class(code for code in codes if unicodedata.category(chr(code))[0] == "M")
    unspaced, japanese = _HAN + _HIRAGANA, _HAN + _HIRAGANA + _KATAKANA
    # A mark after a Chinese character or a Hiragana (voicing, variation selector) belongs to it.
    single = f"[{unspaced}][{marks}]{{0,{_MAX_MARKS}}}"
    run_of_japanese = f"[{japanese}][{japanese}{marks}]{{0,{MAX_WORD_CHARS - 1}}}"
    patterns = {
        "long_mark_run": f"([{marks}]{{{_MAX_MARKS}}})[{marks}]+",
        "special": f"[{marks}{unspaced}]",
        "spaced_word": rf"[\w{marks}]{{1,{MAX_WORD_CHARS}}}",
        "unspaced_word": rf"{single}|(?:(?![{unspaced}])[\w{marks}]){{1,{MAX_WORD_CHARS}}}",
        "japanese_run": rf"{run_of_japanese}|(?:(?![{japanese}])[\w{marks}]){{1,{MAX_WORD_CHARS}}}",
    }
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


@dataclass(frozen=True, slots=True)
class AnalyzerConfig:
    """Configuration of an analyzer; equal configurations give equal words.

    `ConfigError` is raised for an unknown value or an impossible combination.
    """

    kind: str = "unicode"
    """How texts are split into words, one of `KINDS`."""
    stemmer: str | None = None
    """Language of a Snowball stemmer, one of `STEMMERS`; applied after stop words are dropped."""
    stop_words: str | tuple[str, ...] | None = None
    """Name of a list in `STOP_WORDS`, or the words."""
    engine_field: str | None = None
    """``INDEX/FIELD`` whose analysis chain is used; required for kind ``engine``, and not allowed for others."""
    lowercase: bool = True
    """Whether texts are lower-cased before they are split."""
    bigrams: bool = False
    """Whether pairs of neighbouring words are words as well."""

    def __post_init__(self) -> None:
        _check_choice("analyzer kind", self.kind, KINDS)
        if self.stemmer is not None:
            _check_choice("stemmer language", self.stemmer, STEMMERS)
        if isinstance(self.stop_words, str):
            _check_choice("stop word list", self.stop_words, tuple(STOP_WORDS))
        elif self.stop_words is not None:
            _check_stop_words(self.stop_words)
        for name, value in {"lowercase": self.lowercase, "bigrams": self.bigrams}.items():
            if not isinstance(value, bool):
                raise ConfigError(f"{name} is {value!r}: it must be true or false", value=value)
        self._check_engine()

    def _check_engine(self) -> None:
        if self.kind != "engine":
            if self.engine_field is not None:
                message = f"the engine field {self.engine_field!r} belongs to kind 'engine', not to {self.kind!r}"
                raise ConfigError(f"{message}: drop it, or write engine:{self.engine_field}", value=self.engine_field)
            return
        index, _, field = (self.engine_field if isinstance(self.engine_field, str) else "").partition("/")
        if not index or not field:
            message = f"the engine field is {self.engine_field!r}: it must be INDEX/FIELD, as in engine:products/title"
            raise ConfigError(message, value=self.engine_field)
        if self.stemmer is not None or self.stop_words is not None or not self.lowercase or self.bigrams:
            message = "an engine's analysis chain decides on case, stop words, stemming and bigrams itself"
            raise ConfigError(f"{message}: set them in the mapping of {self.engine_field}, and drop them here")

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as a JSON object for `from_json`."""
        stop = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        kept = {**asdict(self), "stop_words": stop}
        if not self.bigrams:
            del kept["bigrams"]  # older models have no such key, and their ids are computed from this object
        return kept

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AnalyzerConfig:
        """Return the configuration of a JSON object; missing keys get their defaults.

        `ConfigError` is raised for unknown keys and invalid values.
        """
        legal = tuple(cls.__slots__)
        if not isinstance(value, Mapping):
            raise ConfigError(f"an analyzer is {type(value).__name__}: it must be an object with {', '.join(legal)}")
        for key in value:
            _check_choice("analyzer key", key, legal)
        stop = value.get("stop_words")
        return cls(**{**value, "stop_words": tuple(stop) if isinstance(stop, list) else stop})


def parse_analyzer(text: str) -> AnalyzerConfig:
    """Return the configuration of an option value.

    Examples are ``unicode,stem=english,stop=english``, ``japanese`` and ``engine:INDEX/FIELD``.
    The name of a language in `STEMMERS` selects its stemmer and stop words. The `ConfigError` for invalid text shows
    the whole syntax.
    """
    if text.startswith("engine:"):
        return AnalyzerConfig(kind="engine", engine_field=text.removeprefix("engine:"))
    if text in STEMMERS:
        return AnalyzerConfig(stemmer=text, stop_words=text if text in STOP_WORDS else None)
    kind, *options = text.split(",")
    if kind not in KINDS:
        raise ConfigError(
            f"the analyzer {kind!r} is unknown: write {ANALYZER_SYNTAX}; LANGUAGE is one of {', '.join(STEMMERS)}",
            value=text,
        )
    values: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if option == "bigrams" and option not in values:
            values[name] = name
            continue
        if name not in ("stem", "stop", "case") or not equals or not value or name in values:
            raise ConfigError(
                f"the analyzer option {option!r} in {text!r} is invalid: write {ANALYZER_SYNTAX}", value=text
            )
        values[name] = value
    if values.get("case", "keep") != "keep":
        raise ConfigError(f"case={values['case']!r} in {text!r} is invalid: write case=keep, or leave it out")
    stop = values.get("stop")
    return AnalyzerConfig(
        kind=kind,
        stemmer=values.get("stem"),
        stop_words=stop if stop is None or stop in STOP_WORDS else _read_stop_words(stop),
        lowercase="case" not in values,
        bigrams="bigrams" in values,
    )


def _check_choice(what: str, value: object, legal: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in legal:
        raise ConfigError(f"the {what} {value!r} is unknown: choose one of {', '.join(legal)}", value=value)


def _check_stop_words(stop: object) -> None:
    if not isinstance(stop, tuple) or not all(isinstance(word, str) and word for word in stop):
        raise ConfigError(f"stop words are {type(stop).__name__}: they must be a list's name or non-empty words")
    if len(stop) > _MAX_STOP_WORDS:
        raise ConfigError(
            f"{len(stop)} stop words: at most {_MAX_STOP_WORDS} are accepted; limit the vocabulary instead"
        )


def _read_stop_words(path: str) -> tuple[str, ...]:
    """Return the words of a UTF-8 file, one word per line, sorted; they are split like any text so that they match."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        message = (
            f"stop={path!r} is neither a list ({', '.join(STOP_WORDS)}) nor a readable UTF-8 file of words: {error}"
        )
        raise ConfigError(message, value=path) from error
    return tuple(sorted({word for line in lines for word in words(normalised(line))}))


EngineAnalyze = Callable[[Sequence[str]], list[list[str]]]
"""Function from texts to the tokens of each, by an engine's analysis chain."""


class Analyzer(Protocol):
    """Splits texts into words; equal texts give equal words."""

    @property
    def config(self) -> AnalyzerConfig:
        """The configuration of this analyzer."""

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order; an empty list for a text without words."""


def make_analyzer(
    config: AnalyzerConfig,
    engine_analyze: EngineAnalyze | None = None,
    definition: Mapping[str, Any] | None = None,
) -> Analyzer:
    """Return the analyzer of a configuration.

    Kind ``engine`` needs ``lambda texts: engine.analyze(INDEX, FIELD, texts)``, and has the ``definition`` of the chain
    (`reranker.engines.analysis`). `ConfigError` is raised if the function is missing, `MissingExtra` if the Japanese
    dictionary is not installed.
    """
    if config.kind == "engine":
        if engine_analyze is None:
            message = f"the analyzer engine:{config.engine_field} needs a search engine, and none was given"
            raise ConfigError(f"{message}: name the engine that holds this index (--engine SPEC)")
        return EngineAnalyzer(config, engine_analyze, definition)
    return JapaneseAnalyzer(config) if config.kind == "japanese" else UnicodeAnalyzer(config)


class UnicodeAnalyzer:
    """Words by this module's rule, without stop words, stemmed; then, if wanted, their bigrams joined by `BETWEEN`."""

    def __init__(self, config: AnalyzerConfig) -> None:
        self.config = config
        listed = STOP_WORDS[config.stop_words] if isinstance(config.stop_words, str) else config.stop_words
        self._stop = frozenset(listed or ())
        self._local = threading.local()  # stemmers and MeCab taggers are not thread-safe

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order, then its bigrams."""
        batch = self._stems(texts)
        if not self.config.bigrams:
            return batch
        return [[*tokens, *(f"{left}{BETWEEN}{right}" for left, right in pairwise(tokens))] for tokens in batch]

    def _stems(self, texts: Sequence[str]) -> list[list[str]]:
        batch = [self._words(normalised(text, lowercase=self.config.lowercase)) for text in texts]
        if self._stop:
            batch = [[word for word in tokens if word not in self._stop] for tokens in batch]
        if self.config.stemmer is None:
            return batch
        stemmer = getattr(self._local, "stemmer", None)
        if stemmer is None:
            stemmer = self._local.stemmer = Stemmer.Stemmer(self.config.stemmer)
        stems = stemmer.stemWords(list(chain.from_iterable(batch)))
        ends = accumulate(map(len, batch), initial=0)
        return [stems[start:end] for start, end in pairwise(ends)]

    def _words(self, text: str) -> list[str]:
        return words(text)


class JapaneseAnalyzer(UnicodeAnalyzer):
    """Dictionary forms of Japanese words by MeCab (fugashi, UniDic lite); other scripts as `UnicodeAnalyzer` does.

    Each word of Kanji and Kana gives its dictionary form in its own spelling (``走った`` gives ``走る``, ``た``).
    """

    def __init__(self, config: AnalyzerConfig) -> None:
        super().__init__(config)
        self._tagger()

    def _words(self, text: str) -> list[str]:
        tagger, cut = self._tagger(), list[str]()
        for run, is_japanese in japanese_runs(text):
            if is_japanese:
                cut.extend(word.feature.orthBase or word.surface for word in tagger(run))
            else:
                cut.append(run)
        return cut

    def _tagger(self) -> Any:
        tagger = getattr(self._local, "tagger", None)
        if tagger is None:
            try:
                import fugashi

                # A fixed dictionary, so that a larger one on the same machine does not split words differently.
                dictionary = import_module("unidic_lite").DICDIR
            except ImportError as error:
                raise MissingExtra(error.name or "fugashi", "japanese") from error
            tagger = self._local.tagger = fugashi.Tagger(f'-d "{dictionary}"')
        return tagger


class EngineAnalyzer:
    """Words by the analysis chain of a search engine; errors of ``engine_analyze`` are not caught."""

    def __init__(
        self, config: AnalyzerConfig, engine_analyze: EngineAnalyze, definition: Mapping[str, Any] | None = None
    ) -> None:
        self.config = config
        self.definition = definition or {}
        """The chain as the engine defined it for the training; empty if unknown (models of earlier versions)."""
        self._analyze = engine_analyze

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order; raises `InputError` unless there is one answer per text."""
        # A lone surrogate cannot be sent as UTF-8. It is part of no word in any chain, so replacing it changes nothing.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        answer = self._analyze(clean)
        if len(answer) != len(clean):
            message = f"engine:{self.config.engine_field} answered for {len(answer)} texts, asked for {len(clean)}"
            raise InputError(f"{message}: the answer must hold one list of tokens per text; check the engine's version")
        return [[token[:MAX_WORD_CHARS] for token in tokens if token] for tokens in answer]
