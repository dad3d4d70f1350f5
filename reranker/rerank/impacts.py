"""Search by impacts: which field the live indexes have, and the clause for a query or a template of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reranker.engines.analysis import analyzer_definition, changes_of, stacking_part
from reranker.engines.bodies import PLACE
from reranker.engines.impacts import IMPACTS_ALIAS, impacts_clause, key_of, match_clause
from reranker.engines.language import property_type
from reranker.engines.protocol import Engine
from reranker.engines.vectors import ID_DIGITS, field_name
from reranker.errors import EncoderMismatch, IndexMissing, InputError
from reranker.models.impacts import names_of_words, query_words
from reranker.models.ranking_model import RankingModel
from reranker.text.analyzers import EngineAnalyzer


@dataclass(frozen=True, slots=True)
class ServedImpacts:
    """The impacts of a model in the indexes behind a name."""

    model: RankingModel
    field: str
    """Name of the field, or of its alias."""
    field_type: str
    """``sparse_vector`` or ``rank_features``."""

    @classmethod
    def of_index(cls, engine: Engine, index: str, model: RankingModel) -> ServedImpacts:
        """Return the impacts of a model in an index or alias.

        Raises
        ------
        EncoderMismatch
            If an index does not have them. The message contains the command that writes them.
        EngineError
            If the engine does not answer.
        """
        field, types, aliased = field_name(model.encoder_id, "impacts"), set[str](), []
        names = engine.index_names(index)
        for name in names:
            properties = engine.index_info(name).properties
            if field not in properties:
                raise EncoderMismatch(
                    f"index {name!r} has no impacts of encoder {model.encoder_id[:ID_DIGITS]}: write them with  "
                    f"ssi revectorize --engine {engine.spec} --index {index} --model DIR --routes impacts",
                    index=name,
                    encoder=model.encoder_id,
                )
            types.add(property_type(properties[field]))
            aliased.append(properties.get(IMPACTS_ALIAS, {}).get("path") == field)
        if len(types) != 1:
            found = f"impacts of the types {', '.join(sorted(types))}" if types else "no index"
            raise EncoderMismatch(f"there are {found} behind {index!r} on {engine.spec}: create it with `ssi index`")
        return cls(model, IMPACTS_ALIAS if all(aliased) else field, types.pop())

    def clause(self, query: str, boost: float = 1.0) -> dict[str, Any]:
        """Return the clause that adds up the impacts of a query's words, and the preferences of users for the query.

        Raises `InputError` if the query has no word that the model counts.
        """
        words, preferred = query_words(self.model, query), self.model.preferred(query)
        return impacts_clause(self.field, self.field_type, words, boost, preferred)

    def clauses_of_words(self, query: str) -> dict[str, dict[str, Any]]:
        """Return the clause of each word of a query by itself, for the words that the field can hold."""
        held = {
            word: [name for name in names if key_of(name, self.field_type)]
            for word, names in names_of_words(self.model, query).items()
        }
        return {word: impacts_clause(self.field, self.field_type, names) for word, names in held.items() if names}

    def template_clause(self, engine: Engine, index: str, boost: float = 1.0) -> dict[str, Any]:
        """Return the clause with the placeholder of the query, whose words the engine's own analyzer finds.

        Raises `InputError` with the reason if that would add up other words than those of the model.
        """
        analyzer, reason = self.model.encoder.analyzer, ""
        if self.field_type != "sparse_vector":
            reason = f"the engine does not search a field of the type {self.field_type} by a text"
        elif not isinstance(analyzer, EngineAnalyzer) or analyzer.config.bigrams:
            reason = "the model's words are not those of an analyzer in the index (--analyzer engine:INDEX/FIELD)"
        else:
            reason = _why_other_words(engine, index, analyzer)
        if reason:
            raise InputError(
                f"a template would add up other words, because {reason}: give the query, for a clause of its words"
            )
        definition = analyzer.definition if isinstance(analyzer, EngineAnalyzer) else None
        return match_clause(self.field, PLACE, str((definition or {})["analyzer"]), boost)


def _why_other_words(engine: Engine, index: str, analyzer: EngineAnalyzer) -> str:
    """Return why an index's analyzer may find other words in a query than the model's analyzer; "" if it does not."""
    stored: Mapping[str, Any] = analyzer.definition or {}
    if not stored:
        return "the definition of the model's analyzer is unknown; train again"
    if part := stacking_part(stored):
        return f"its analyzer may put several words at one position ({part}), whose impacts the engine would not add up"
    _, _, path = str(analyzer.config.engine_field).partition("/")
    try:
        present = analyzer_definition(engine, index, path)
    except IndexMissing as error:
        return str(error)
    if changes := changes_of(stored, present):
        return f"index {index!r} has another analyzer for {path!r} ({changes})"
    return ""
