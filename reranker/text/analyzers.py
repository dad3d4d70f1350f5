"""Analyzers: how texts become words. One configuration, kept in the model, used alike wherever a text is read.

``unicode`` (the default) follows the rule of `reranker.text.words`; ``japanese`` cuts Japanese script with MeCab;
``engine`` asks a search engine for the words its own analysis chain of a field makes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol

from reranker.errors import ConfigError, InputError, MissingExtra
from reranker.text.analyzer_config import KINDS, STEMMERS, STOP_WORDS, AnalyzerConfig, parse_analyzer
from reranker.text.words import MAX_WORD_CHARS, is_japanese, japanese_runs, normalised, words

__all__ = [
    "KINDS",
    "STEMMERS",
    "STOP_WORDS",
    "Analyzer",
    "AnalyzerConfig",
    "EngineAnalyze",
    "EngineAnalyzer",
    "JapaneseAnalyzer",
    "UnicodeAnalyzer",
    "make_analyzer",
    "parse_analyzer",
]

EngineAnalyze = Callable[[Sequence[str]], list[list[str]]]
"""Texts to the tokens an engine's analysis chain makes of each, in order."""


class Analyzer(Protocol):
    """Texts to words, the same way every time."""

    @property
    def config(self) -> AnalyzerConfig:
        """What this analyzer was made from."""
        ...

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order; an empty list for a text without words."""
        ...


def make_analyzer(config: AnalyzerConfig, engine_analyze: EngineAnalyze | None = None) -> Analyzer:
    """Return the analyzer of a configuration.

    Parameters
    ----------
    config : AnalyzerConfig
        Kind and options.
    engine_analyze : callable or None
        Needed by kind ``engine``: ``lambda texts: engine.analyze(INDEX, FIELD, texts)``.

    Raises
    ------
    ConfigError
        Where kind ``engine`` comes without its callable.
    MissingExtra
        Where a stemmer or the Japanese dictionary is not installed.
    """
    if config.kind == "engine":
        if engine_analyze is None:
            message = f"the analyzer engine:{config.engine_field} needs a search engine, and none was given"
            raise ConfigError(f"{message}: name the engine that holds this index (--engine SPEC)")
        return EngineAnalyzer(config, engine_analyze)
    return JapaneseAnalyzer(config) if config.kind == "japanese" else UnicodeAnalyzer(config)


class UnicodeAnalyzer:
    """Words by the rule of `reranker.text.words`, then without stop words, then stemmed.

    Parameters
    ----------
    config : AnalyzerConfig
        Of kind ``unicode``.
    """

    def __init__(self, config: AnalyzerConfig) -> None:
        self.config = config
        self._filter = _TokenFilter(config)

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order."""
        lowercase = self.config.lowercase
        return self._filter.apply([words(normalised(text, lowercase=lowercase)) for text in texts])


class JapaneseAnalyzer:
    """Dictionary forms of Japanese words by MeCab (fugashi, UniDic lite); other scripts as `UnicodeAnalyzer` does.

    Each run of Kanji and Kana is cut by MeCab and each word replaced by its dictionary form in its own spelling
    (``走った`` gives ``走る``, ``た``), so that inflected forms meet.

    Parameters
    ----------
    config : AnalyzerConfig
        Of kind ``japanese``.
    """

    def __init__(self, config: AnalyzerConfig) -> None:
        self.config = config
        self._filter = _TokenFilter(config)
        self._local = threading.local()  # a MeCab tagger serves one thread at a time
        self._tagger()

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order."""
        return self._filter.apply([self._cut(normalised(text, lowercase=self.config.lowercase)) for text in texts])

    def _cut(self, text: str) -> list[str]:
        tagger, found = self._tagger(), list[str]()
        for run in japanese_runs(text):
            if is_japanese(run):
                found.extend(word.feature.orthBase or word.surface for word in tagger(run))
            else:
                found.append(run)
        return found

    def _tagger(self) -> Any:
        tagger = getattr(self._local, "tagger", None)
        if tagger is None:
            try:
                import fugashi

                # Named, so that a larger dictionary on the same machine does not cut other words.
                dictionary = import_module("unidic_lite").DICDIR
            except ImportError as error:
                raise MissingExtra(error.name or "fugashi", "japanese") from error
            tagger = self._local.tagger = fugashi.Tagger(f'-d "{dictionary}"')
        return tagger


class EngineAnalyzer:
    """The words that a search engine's own analysis chain makes.

    Parameters
    ----------
    config : AnalyzerConfig
        Of kind ``engine``.
    engine_analyze : callable
        Texts to tokens; its errors pass through.
    """

    def __init__(self, config: AnalyzerConfig, engine_analyze: EngineAnalyze) -> None:
        self.config = config
        self._analyze = engine_analyze

    def tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text, in text order.

        Raises
        ------
        InputError
            Where the engine answers with another number of texts than it was asked for.
        """
        # A lone surrogate cannot be sent as UTF-8; it is no word in any chain, so a replacement changes nothing.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        found = self._analyze(clean)
        if len(found) != len(clean):
            message = f"engine:{self.config.engine_field} answered for {len(found)} texts, asked for {len(clean)}"
            raise InputError(f"{message}: the answer must hold one list of tokens a text; check the engine's version")
        return [[token[:MAX_WORD_CHARS] for token in tokens if token] for tokens in found]


class _TokenFilter:
    """Stop words out, then stems; a no-op where neither is configured."""

    def __init__(self, config: AnalyzerConfig) -> None:
        self._stop = config.stop_set
        self._language = config.stemmer
        self._local = threading.local()  # PyStemmer objects must not be shared between threads
        if self._language is not None:
            self._stemmer()

    def apply(self, batch: list[list[str]]) -> list[list[str]]:
        if self._stop:
            stop = self._stop
            batch = [[word for word in found if word not in stop] for found in batch]
        if self._language is None:
            return batch
        stems = self._stemmer().stemWords(list(chain.from_iterable(batch)))
        ends = accumulate(map(len, batch), initial=0)
        return [stems[start:end] for start, end in pairwise(ends)]

    def _stemmer(self) -> Any:
        stemmer = getattr(self._local, "stemmer", None)
        if stemmer is None:
            try:
                import Stemmer
            except ImportError as error:
                raise MissingExtra("Stemmer", "stemming") from error
            stemmer = self._local.stemmer = Stemmer.Stemmer(self._language)
        return stemmer
