"""Boosts of search bodies: the parts that change the engine's scores independently of the query text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from reranker.engines.bodies import PLACE, SCORING_PARTS
from reranker.engines.wire import changed_texts


class ScoreBoost(NamedTuple):
    """A part of a search body that changes the engine's scores independently of the query text."""

    clause: str
    """Name of the clause, such as ``function_score``."""
    fields: tuple[str, ...] = ()
    """Fields of the document that it reads, in order of first use; empty if it names none."""


_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    **SCORING_PARTS,
    "linear": ("retrievers",),
    "pinned": ("organic", "retriever"),
    "rescorer": ("retriever", "rescore"),
    "rule": ("organic", "retriever"),
    "script_score": ("query",),
    "text_similarity_reranker": ("retriever",),
}
"""`SCORING_PARTS`, with clauses and retrievers that only bodies of the operator can contain."""


_OPTIONAL_PARTS: Final = ("should", "queries", "retrievers")
"""Parts whose clauses a document need not match, so that their scores change the order."""
_FUNCTIONS: Final = ("field_value_factor", "gauss", "exp", "linear", "script_score", "random_score", "weight")
_FACTS: Final = ("exists", "range", "term", "terms")
"""Clauses that change the order only by facts about a document if they do not contain the query text."""
_FIELD_IN_SCRIPT: Final = re.compile(r"""\bdoc\[\s*['"]([^'"]+)['"]\s*\]""")


def boosts_of(body: Mapping[str, Any]) -> list[ScoreBoost]:
    """Return the boosts of a search body that do not depend on the query text, in order, each once.

    They are ``function_score``, ``script_score``, ``boosting``, ``rank_feature``, ``distance_feature`` and
    ``indices_boost``, a rescore by a script, and, as optional clauses (``should``), ``constant_score`` and facts about
    a document without the query text (``term``, ``range``, ...). Filters are ignored, because they have no score.
    """
    found = [
        *_boosts_in(body.get("query"), is_optional=False),
        *_boosts_in(body.get("retriever"), is_optional=False),
        *(boost for part in _listed(body.get("sub_searches")) for boost in _boosts_in(_part(part, "query"), False)),
        *_boosts_of_rescore(body.get("rescore")),
    ]
    if body.get("indices_boost"):
        found.append(ScoreBoost("indices_boost"))
    return list(dict.fromkeys(found))


def _boosts_in(node: Any, is_optional: bool) -> Iterator[ScoreBoost]:
    """Yield the boosts of a clause or a list of clauses; ``is_optional``: a document need not match it."""
    for clause in _listed(node):
        for name, content in clause.items() if isinstance(clause, Mapping) else ():
            if name == "retriever":  # a member of the retriever ``linear``
                yield from _boosts_in(content, is_optional)
            if not isinstance(content, Mapping):
                continue
            fields = _boosting_fields(name, content, is_optional)
            if fields is not None:
                yield ScoreBoost(name, tuple(dict.fromkeys(fields)))
            for part in _PARTS.get(name, ()):
                if part == "rescore":
                    yield from _boosts_of_rescore(content.get(part))
                else:
                    yield from _boosts_in(content.get(part), is_optional or part in _OPTIONAL_PARTS)


def _boosts_of_rescore(node: Any) -> Iterator[ScoreBoost]:
    for stage in _listed(node):
        yield from _boosts_in(_part(_part(stage, "query"), "rescore_query"), is_optional=True)
        script = _part(stage, "script")
        if script is not None:
            yield ScoreBoost("rescore", tuple(dict.fromkeys(_fields_of_script(_part(script, "script") or script))))


def _boosting_fields(name: str, content: Mapping[str, Any], is_optional: bool) -> list[str] | None:
    """Return the fields of a clause that boosts independently of the query text; None for another clause."""
    if name == "function_score":
        functions = [content, *_listed(content.get("functions"))]
        boosting = [one for one in functions if isinstance(one, Mapping) and any(key in one for key in _FUNCTIONS)]
        return [field for one in boosting for field in _fields_of_function(one)] if boosting else None
    if name == "script_score":
        return _fields_of_script(content.get("script"))
    if name in ("rank_feature", "distance_feature"):
        return [content["field"]] if isinstance(content.get("field"), str) else []
    if name == "boosting":
        return _fields_of_fact(content.get("negative"))
    if is_optional and name in ("constant_score", *_FACTS) and not _has_query_text(content):
        return _fields_of_fact({name: content} if name in _FACTS else content.get("filter"))
    return None


def _fields_of_function(function: Mapping[str, Any]) -> list[str]:
    """Return the fields of one function of ``function_score``, and those of the filter that selects its documents."""
    fields = [_part(function.get("field_value_factor"), "field"), *_fields_of_fact(function.get("filter"))]
    for decay in ("gauss", "exp", "linear"):
        content = function.get(decay)
        fields += [name for name in content if name != "multi_value_mode"] if isinstance(content, Mapping) else []
    fields += _fields_of_script(_part(function.get("script_score"), "script"))
    return [field for field in fields if isinstance(field, str)]


def _fields_of_script(script: Any) -> list[str]:
    """Return the fields whose doc values a script reads by literal names."""
    source = _part(script, "source") if isinstance(script, Mapping) else script
    return _FIELD_IN_SCRIPT.findall(source) if isinstance(source, str) else []


def _fields_of_fact(clause: Any) -> list[str]:
    """Return the field of a clause of `_FACTS`; empty for another clause."""
    fields = []
    for name in _FACTS:
        content = _part(clause, name)
        if isinstance(content, Mapping):
            fields += [content.get("field")] if name == "exists" else [key for key in content if key != "boost"]
    return [field for field in fields if isinstance(field, str)]


def _has_query_text(content: Any) -> bool:
    return bool(changed_texts(content, lambda text: text.replace(PLACE, "")) != content)


def _listed(node: Any) -> Sequence[Any]:
    if node is None:
        return ()
    return node if isinstance(node, (list, tuple)) else (node,)


def _part(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, Mapping) else None
