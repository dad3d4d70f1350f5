"""A corpus of two languages: texts with mates (equal ids on both sides) and links among the documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from papers.judged_texts import TitledTexts, titled_texts
from papers.system import Progress
from reranker.errors import ConfigError, InputError
from reranker.formats import read_links
from reranker.text.analyzers import Analyzer, make_analyzer, normalised, parse_analyzer

Tokens = list[list[str]]
Links = tuple[tuple[str, str], ...]

ANALYZERS: dict[str, str] = {"en": "unicode,stop=english", "ja": "japanese"}
"""Analyzer of a language; ``unicode`` for any other."""
OTHER_SCRIPTS = ("ar", "el", "he", "hi", "ja", "ko", "ru", "th", "uk", "zh")
"""Languages of another script than Latin: their Latin words are mostly names that alone would find the mate."""
TITLE_WEIGHT = 3
"""How often a title counts in a document: pages name the titles of pages that they link to."""

_LATIN = re.compile("[A-Za-z0-9_]+")
_BATCH = 500


@dataclass(frozen=True)
class Side:
    """The texts of one language.

    Parameters
    ----------
    language : str
        As in ``docs_<language>.jsonl.gz``.
    ids : tuple of str
        Ascending.
    titles, texts : tuple of list of str
        Words of each.
    """

    language: str
    ids: tuple[str, ...]
    titles: tuple[list[str], ...]
    texts: tuple[list[str], ...]

    def as_queries(self) -> Tokens:
        """Return title and text once: a page used as a query must not ask for pages that repeat its own title."""
        return [title + text for title, text in zip(self.titles, self.texts, strict=True)]

    def as_documents(self) -> Tokens:
        """Return the title `TITLE_WEIGHT` times and the text."""
        return [TITLE_WEIGHT * title + text for title, text in zip(self.titles, self.texts, strict=True)]

    def rows_of(self, ids: Sequence[str]) -> list[int]:
        """Return the row of each id."""
        row_of = {one: row for row, one in enumerate(self.ids)}
        return [row_of[one] for one in ids]


@dataclass(frozen=True)
class Bilingual:
    """Two languages and the links of the documents' one.

    Parameters
    ----------
    queries, documents : Side
        English is the documents' language where it is one of the two, else the first in the alphabet.
    links : tuple of (source, target)
        Between documents.
    parts : mapping of ``train``, ``valid``, ``test`` to links, or None
        Their split where the corpus comes with one.
    """

    queries: Side
    documents: Side
    links: Links
    parts: dict[str, Links] | None = None

    @property
    def mates(self) -> tuple[str, ...]:
        """Ids that both sides have, ascending."""
        return tuple(sorted(set(self.queries.ids) & set(self.documents.ids)))


def languages_of(folder: Path) -> tuple[str, str]:
    """Return (language of the queries, language of the documents) of a folder.

    Raises
    ------
    ConfigError
        If the folder does not hold texts of two languages.
    """
    found = sorted(path.name[len("docs_") : -len(".jsonl.gz")] for path in folder.glob("docs_*.jsonl.gz"))
    if len(found) != 2:
        raise ConfigError(
            f"{str(folder)!r} holds texts of {len(found)} languages ({', '.join(found) or 'none'}): a corpus of mates "
            f"has docs_A.jsonl.gz and docs_B.jsonl.gz, in which equal ids are mates"
        )
    documents = "en" if "en" in found else found[0]
    return next(one for one in found if one != documents), documents


def read_bilingual(folder: Path, progress: Progress, limit: int | None = None) -> Bilingual:
    """Return the corpus of a folder.

    Parameters
    ----------
    folder : Path
        With ``docs_A.jsonl.gz``, ``docs_B.jsonl.gz`` and, for retrieval, ``links_train``, ``links_valid`` and
        ``links_test.tsv.gz``, or ``links.tsv.gz`` (or ``links_<documents' language>.tsv.gz``) to be split.
    progress : callable
    limit : int, optional
        Keep the first so many mates, in the order of their ids, and nothing else.

    Raises
    ------
    ConfigError
        As `languages_of`.
    InputError
        If no id is on both sides, or a file cannot be read.
    """
    languages = languages_of(folder)
    raw = [titled_texts(folder / f"docs_{language}.jsonl.gz") for language in languages]
    mates = sorted(set(raw[0]) & set(raw[1]))
    if not mates:
        raise InputError(f"no text of {str(folder)!r} has a mate: give texts of both languages the same id")
    if limit is not None:
        kept = set(mates[:limit])
        raw = [{one: text for one, text in side.items() if one in kept} for side in raw]
    queries, documents = (_side(language, side, progress) for language, side in zip(languages, raw, strict=True))
    known = set(documents.ids)
    parts = _parts(folder, known)
    whole = (folder / f"{stem}.tsv.gz" for stem in (f"links_{documents.language}", "links"))
    path = next((path for path in whole if path.exists()), None)
    links = tuple(link for part in (parts or {}).values() for link in part) if path is None else _links(path, known)
    return Bilingual(queries, documents, links, parts)


def _parts(folder: Path, known: set[str]) -> dict[str, Links] | None:
    """Return the corpus's own split of its links, None without one."""
    paths = {part: folder / f"links_{part}.tsv.gz" for part in ("train", "valid", "test")}
    if not all(path.exists() for path in paths.values()):
        return None
    return {part: _links(path, known) for part, path in paths.items()}


def _links(path: Path, known: set[str]) -> Links:
    """Return the links between known documents, each once, none to itself."""
    links = ((link.source, link.target) for link in read_links(path))
    return tuple(dict.fromkeys((s, t) for s, t in links if s != t and s in known and t in known))


def _side(language: str, sources: TitledTexts, progress: Progress) -> Side:
    """Return the words of a language's texts."""
    analyzer = make_analyzer(parse_analyzer(ANALYZERS.get(language, "unicode")))
    ids = tuple(sorted(sources))
    titles, texts = (_words(analyzer, language, [sources[one][field] for one in ids], progress) for field in range(2))
    return Side(language, ids, titles, texts)


def _words(analyzer: Analyzer, language: str, texts: Sequence[str], progress: Progress) -> tuple[list[str], ...]:
    """Return the words of texts, without Latin ones where the language has another script."""
    if language in OTHER_SCRIPTS:
        texts = [_LATIN.sub(" ", normalised(text)) for text in texts]
    found: list[list[str]] = []
    for start in range(0, len(texts), _BATCH):
        found.extend(analyzer.tokens(texts[start : start + _BATCH]))
        progress(f"words of {language}", len(found), len(texts))
    return tuple(found)
