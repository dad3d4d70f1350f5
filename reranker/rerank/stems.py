"""Stems: whether the fields that a body searches have them, and how much of a model's gain they explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from reranker.engines.analysis import TEXT_TYPES, field_definition
from reranker.engines.bodies import searched_fields
from reranker.engines.protocol import Engine
from reranker.models.ranking_model import Encoder
from reranker.rerank.calibration.comparison import OrderComparison
from reranker.text.analyzers import make_analyzer

N_DOCUMENTS: Final = 100
"""Number of documents of the index whose words are compared."""
N_PAIRS: Final = 50
"""Maximum number of pairs of words that are compared."""
MAX_JOINED: Final = 0.1
"""Share of pairs that an analyzer without stems can join, for example because it removes accents."""
Forms = tuple[str, str]
"""Two words that have the same stem for the model."""


def unstemmed_fields(engine: Engine, index: str, encoder: Encoder, body: Mapping[str, Any]) -> dict[str, Forms]:
    """Return the fields that a body searches without stems, each with two words that its analyzer keeps apart.

    The words are from documents of the index, and the model reduces both to the same stem. A field is left out if the
    body also searches a multi-field of it that has stems. Nothing is returned if the model has no stems itself.

    Raises `EngineError` if the engine does not answer or refuses to analyze words.
    """
    if encoder.analyzer.config.stemmer is None:
        return {}
    concrete = engine.index_names(index)[0]
    info = engine.index_info(concrete)
    paths = [spec.path for spec in encoder.view.fields]
    searched: dict[str, list[str]] = {}
    for field in dict.fromkeys(searched_fields(body.get("query"))):
        if field_definition(info, field).get("type") in TEXT_TYPES:
            parent = next((path for path in paths if f"{field}.".startswith(f"{path}.")), field)
            searched.setdefault(parent, []).append(field)
    if not searched:
        return {}
    answer = engine.search(index, {"query": {"match_all": {}}, "size": N_DOCUMENTS, "_source": paths})
    pairs = _pairs_of_forms(encoder, [text for hit in answer.hits for text in encoder.view.texts(hit.source or {})])
    found = {}
    for fields in searched.values():
        apart = [_kept_apart(engine, concrete, field, pairs) for field in fields]
        if apart[0] is not None and all(apart):
            found[fields[0]] = apart[0]
    return found


def _pairs_of_forms(encoder: Encoder, texts: Sequence[str]) -> list[Forms]:
    """Return the two most frequent words of each stem that has several, the most frequent pairs first."""
    config = replace(encoder.analyzer.config, bigrams=False)
    counts = Counter(word for words in make_analyzer(replace(config, stemmer=None)).tokens(texts) for word in words)
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    forms: dict[tuple[str, ...], list[str]] = {}
    for word, stem in zip(words, make_analyzer(config).tokens(words), strict=True):
        forms.setdefault(tuple(stem), []).append(word)
    pairs = [(found[0], found[1]) for stem, found in forms.items() if stem and len(found) > 1]
    return sorted(pairs, key=lambda pair: -counts[pair[1]])[:N_PAIRS]


def _kept_apart(engine: Engine, index: str, field: str, pairs: Sequence[Forms]) -> Forms | None:
    """Return the first pair that the analyzer of a field keeps apart; None if it has stems or there are no pairs."""
    tokens = iter(engine.analyze(index, field, [word for pair in pairs for word in pair]))
    both = [(pair, set(next(tokens)), set(next(tokens))) for pair in pairs]
    known = [(pair, first, second) for pair, first, second in both if first and second]  # stop words have no tokens
    apart = [pair for pair, first, second in known if not first & second]
    return apart[0] if apart and len(known) - len(apart) <= MAX_JOINED * len(known) else None


def stems_sentence(fields: Mapping[str, Forms], comparison: OrderComparison, measure: str, encoder: Encoder) -> str:
    """Return how much of the model's gain its word matches give, for fields that `unstemmed_fields` has found.

    The word matches are compared with the better one of the engine's two orders, because the field weights of the model
    need no stems.
    """
    names = ", ".join(repr(field) for field in fields)
    first, second = next(iter(fields.values()))
    means = {order: values[measure] for order, values in comparison.means.items()}
    label = "MAP" if measure == "AP" else measure
    best = "weights" if means["weights"] > means["engine"] else "engine"
    of_words, gain = comparison.differences["words", best][measure], means["model"] - means["engine"]
    if encoder.memory is not None:
        verdict = (
            "The word matches include a memory, which an index does not have, so an analyzer with stems gives "
            "less than this difference"
        )
    elif of_words.difference > max(of_words.interval, gain / 2):
        verdict = (
            "Most of the gain needs no model, only an analyzer with stems in the mapping, such as 'english' of "
            "Elasticsearch and OpenSearch: change the mapping first, and calibrate again"
        )
    else:
        verdict = "On these queries, it is not shown that an analyzer with stems would give most of the gain"
    whose = f"analyzer of field {names} does" if len(fields) == 1 else f"analyzers of the fields {names} do"
    return (
        f"the {whose} not reduce words to stems "
        f"({first!r} and {second!r} stay different), but the model's does ({encoder.analyzer.config.stemmer}). Ranked "
        f"only by the model's word matches, the same hits reach {label} {means['words']:.4f}; in the engine's order "
        f"{means['engine']:.4f}, with the field weights {means['weights']:.4f}, in the order of the whole model "
        f"{means['model']:.4f}. {verdict} (docs/reference.md#stems)"
    )
