"""Which analyzer: a configuration checked when made, its JSON form, and its spelling on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reranker.errors import ConfigError
from reranker.text.words import normalised, words

KINDS = ("unicode", "japanese", "engine")
STEMMERS = tuple(
    "arabic armenian basque catalan danish dutch english finnish french german greek hindi hungarian indonesian irish "
    "italian lithuanian nepali norwegian porter portuguese romanian russian serbian spanish swedish tamil turkish "
    "yiddish".split()
)
STOP_WORDS: Mapping[str, tuple[str, ...]] = {
    # Lucene's list (`_english_` in Elasticsearch and OpenSearch), so that both sides drop the same words.
    "english": tuple(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
        "they this to was will with".split()
    ),
}
_MAX_STOP_WORDS = 100_000
_SYNTAX = "unicode[,stem=LANGUAGE][,stop=english|FILE][,case=keep], japanese[,stop=FILE], engine:INDEX/FIELD"


@dataclass(frozen=True, slots=True)
class AnalyzerConfig:
    """What makes an analyzer; equal configurations give equal words.

    Parameters
    ----------
    kind : {'unicode', 'japanese', 'engine'}
        Where words are cut.
    stemmer : str or None
        Language of a Snowball stemmer, applied last (extra ``stemming``).
    stop_words : str, tuple of str or None
        Name of a list in `STOP_WORDS`, or the words themselves; dropped before stemming.
    engine_field : str or None
        ``INDEX/FIELD`` whose analysis chain is used; required by, and only legal for, kind ``engine``.
    lowercase : bool
        Fold case before cutting.

    Raises
    ------
    ConfigError
        For an unknown value or an impossible combination.
    """

    kind: str = "unicode"
    stemmer: str | None = None
    stop_words: str | tuple[str, ...] | None = None
    engine_field: str | None = None
    lowercase: bool = True

    def __post_init__(self) -> None:
        _check_choice("analyzer kind", self.kind, KINDS)
        if self.stemmer is not None:
            _check_choice("stemmer language", self.stemmer, STEMMERS)
        if isinstance(self.stop_words, str):
            _check_choice("stop word list", self.stop_words, tuple(STOP_WORDS))
        elif self.stop_words is not None:
            _check_stop_words(self.stop_words)
        if not isinstance(self.lowercase, bool):
            raise ConfigError(f"lowercase is {self.lowercase!r}: it must be true or false", value=self.lowercase)
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
        if self.stemmer is not None or self.stop_words is not None or not self.lowercase:
            message = "an engine's analysis chain decides on case, stop words and stemming itself"
            raise ConfigError(f"{message}: set them in the mapping of {self.engine_field}, and drop them here")

    @property
    def stop_set(self) -> frozenset[str]:
        """The stop words themselves."""
        listed = STOP_WORDS[self.stop_words] if isinstance(self.stop_words, str) else self.stop_words
        return frozenset(listed or ())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal configuration."""
        stop = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        return {
            "kind": self.kind,
            "stemmer": self.stemmer,
            "stop_words": stop,
            "engine_field": self.engine_field,
            "lowercase": self.lowercase,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AnalyzerConfig:
        """Return the configuration of a JSON object; missing keys take their defaults.

        Raises
        ------
        ConfigError
            For an unknown key or an illegal value.
        """
        legal = tuple(cls.__slots__)
        if not isinstance(value, Mapping):
            raise ConfigError(f"an analyzer is {type(value).__name__}: it must be an object with {', '.join(legal)}")
        for key in value:
            _check_choice("analyzer key", key, legal)
        stop = value.get("stop_words")
        return cls(**{**value, "stop_words": tuple(stop) if isinstance(stop, list) else stop})


def parse_analyzer(text: str) -> AnalyzerConfig:
    """Return the configuration spelt by ``unicode,stem=english,stop=english``, ``japanese`` or ``engine:INDEX/FIELD``.

    Raises
    ------
    ConfigError
        For anything else; the message shows the whole syntax.
    """
    if text.startswith("engine:"):
        return AnalyzerConfig(kind="engine", engine_field=text.removeprefix("engine:"))
    kind, *options = text.split(",")
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in ("stem", "stop", "case") or not equals or not value or name in found:
            raise ConfigError(f"the analyzer option {option!r} in {text!r} is not legal: write {_SYNTAX}", value=text)
        found[name] = value
    if found.get("case", "keep") != "keep":
        raise ConfigError(f"case={found['case']!r} in {text!r} is not legal: write case=keep, or leave it out")
    stop = found.get("stop")
    return AnalyzerConfig(
        kind=kind,
        stemmer=found.get("stem"),
        stop_words=stop if stop is None or stop in STOP_WORDS else _read_stop_words(stop),
        lowercase="case" not in found,
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
    """Return the words of a UTF-8 file, one a line, sorted and cut like any text so that they can match."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        message = (
            f"stop={path!r} is neither a list ({', '.join(STOP_WORDS)}) nor a readable UTF-8 file of words: {error}"
        )
        raise ConfigError(message, value=path) from error
    return tuple(sorted({word for line in lines for word in words(normalised(line))}))
