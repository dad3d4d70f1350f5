"""``ssi init``: examine an existing index, and write a configuration file and a search body for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from reranker.cli import common
from reranker.engines import Engine, absolute_spec
from reranker.engines.analysis import TEXT_TYPES
from reranker.errors import ConfigError, InputError
from reranker.records import is_relevant

if TYPE_CHECKING:
    from reranker.engines.protocol import IndexInfo

SAMPLE = 500
"""Number of documents in the sample."""
MIN_SHARE = 0.05
"""A field is used if at least this share of the sample has text in it."""
KEYWORDS = ("keyword", "constant_keyword", "wildcard")
PLAIN_ANALYZERS = ("default", "standard", "simple", "whitespace", "stop")
JUDGEMENTS = "search-relevance-judgment"
"""Index in which OpenSearch's Search Relevance Workbench stores its judgment lists."""


TITLE_WORDS = 25
"""Most words of a title, on average; a field with more is running text."""
TITLE_DISTINCT = 0.8
"""Least share of distinct texts of a title. Fields with fewer are labels, such as a brand or tags."""
ROLES = ("title", "text", "label")
"""Roles of fields, in the order in which the search body has them."""
WEIGHTS = (0.5, 2.0, 4.0, 8.0)
"""Weights tried for each field of the search body, besides 1."""
JUDGED = 100
"""Number of judged queries with which the weights are chosen, at most."""
LEAST_JUDGED = 10
"""Number of judged queries below which all weights stay 1."""


class Field(NamedTuple):
    """A text field of the mapping, with statistics of its content in the sample."""

    path: str
    """Path with dots between the parts."""
    analyzer: str
    """Name of the engine's analyzer; "" for the default."""
    share: float
    """Share of the documents with text in the field, 0 to 1."""
    words: float
    """Mean number of words of these documents in the field."""
    html: bool
    """Whether more than half of these documents have HTML in the field."""
    why_not: str
    """Reason why the field is not used; "" if it is used."""
    role: str = "text"
    """One of `ROLES`; its meaning follows from the content, not from the name."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Key that sorts fields by role, then the shorter first."""
        return ROLES.index(self.role), self.words, self.path


def other_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of the fields with text that are not read: keywords, nested ones, copies, multi-fields."""
    from reranker.engines.vectors import FIELD_PREFIX

    for name, definition in sorted(properties.items()):
        path, kind = f"{prefix}{name}", definition.get("type")
        if path.startswith(FIELD_PREFIX):
            continue
        if kind in KEYWORDS:
            yield path, f"has exact values ({kind}): use it as a filter, or index its text as a text field"
        elif kind == "nested":
            inside = ", ".join(inner for inner, _ in text_fields(definition.get("properties") or {}, f"{path}."))
            yield path, f"has nested objects, whose texts are not read{f': {inside}' if inside else ''}"
            continue
        for inner, multi in sorted((definition.get("fields") or {}).items()):
            if multi.get("type") in TEXT_TYPES:
                analyzer = f" by the analyzer {multi['analyzer']}" if "analyzer" in multi else ""
                yield f"{path}.{inner}", f"is the text of {path} again{analyzer}: name it in body.json to search it"
        yield from other_fields(definition.get("properties") or {}, f"{path}.")


def copies(properties: Mapping[str, Any], prefix: str = "") -> dict[str, list[str]]:
    """Return the fields that ``copy_to`` fills: path → the fields that are copied."""
    found: dict[str, list[str]] = {}
    for name, definition in sorted(properties.items()):
        path = f"{prefix}{name}"
        targets = definition.get("copy_to") or []
        for target in [targets] if isinstance(targets, str) else targets:
            found.setdefault(target, []).append(path)
        for target, sources in copies(definition.get("properties") or {}, f"{path}.").items():
            found.setdefault(target, []).extend(sources)
    return found


def text_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, analyzer) of the text fields of a mapping, including those of objects, without fields of ssi."""
    from reranker.engines.vectors import FIELD_PREFIX

    for name, definition in sorted(properties.items()):
        path = f"{prefix}{name}"
        if path.startswith(FIELD_PREFIX) or definition.get("type") == "nested":
            continue
        if definition.get("type") in TEXT_TYPES and definition.get("index", True):
            yield path, str(definition.get("analyzer", ""))
        yield from text_fields(definition.get("properties") or {}, f"{path}.")


def field_in_sample(path: str, analyzer: str, sample: list[Mapping[str, Any]]) -> Field:
    """Return the statistics of a field in a sample of documents."""
    from reranker.text.analyzers import words
    from reranker.text.view import TextView, strip_html

    view = TextView.parse([path])
    texts = [text for source in sample if (text := view.texts(source)[0].strip())]
    html = sum(strip_html(text) != text for text in texts) > len(texts) / 2
    n_words = fmean(len(words(text)) for text in texts) if texts else 0.0
    share = len(texts) / len(sample)
    why_not = ""
    if share < MIN_SHARE:
        why_not = "rarely filled"
    elif sum("://" in text or text.startswith("/") for text in texts) > len(texts) / 2:
        why_not = "contains URLs or paths"
    elif sum(" " not in text and any(map(str.isdigit, text)) for text in texts) > len(texts) / 2:
        why_not = "contains codes"
    elif len(texts) > 1 and len(set(texts)) == 1:
        why_not = "is the same in every document"
    distinct = len(set(texts)) / len(texts) if texts else 0.0
    role = "text" if n_words > TITLE_WORDS else "title" if distinct >= TITLE_DISTINCT else "label"
    return Field(path, analyzer, share, n_words, html, why_not, role)


def analyzer_of(name: str, where: str) -> tuple[str, str]:
    """Return the ``--analyzer`` that is closest to the engine's analyzer ``name``, and a note or "".

    ``where`` is the field as INDEX/FIELD.
    """
    from reranker.text.analyzers import STEMMERS

    if name in STEMMERS:
        return name, ""
    if name.startswith("kuromoji"):
        return "japanese", "needs the extra `japanese`"
    if name and name not in PLAIN_ANALYZERS:
        return "auto", f"the index uses the analyzer {name!r}: set analyzer to engine:{where} to use exactly the same"
    return "auto", ""


def judgements_of(engine: Engine) -> dict[str, dict[str, str]]:
    """Return the ratings of the engine's judgment lists: query text → document id → rating. The last rating counts."""
    ratings: dict[str, dict[str, str]] = {}
    for batch in engine.scan(JUDGEMENTS) if engine.index_names(JUDGEMENTS) else ():
        for judged in (query for document in batch for query in document.source.get("judgmentRatings") or ()):
            of_query = ratings.setdefault(str(judged.get("query")), {})
            of_query |= {str(one.get("docId")): str(one.get("rating")) for one in judged.get("ratings") or ()}
    return ratings


def tuned_weights(
    engine: Engine, index: str, paths: Sequence[str], ratings: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, float], str]:
    """Return the weight of each field of the search body, and a sentence about how they were chosen.

    Each field in turn gets the weight of `WEIGHTS`, or 1, with the highest mean nDCG@10 of the engine's own search on
    at most `JUDGED` judged queries. On ties the weight stays as it is.
    """
    from reranker.engines.bodies import default_query_body
    from reranker.evaluation import evaluate_run
    from reranker.formats import parse_grade

    grades: dict[str, dict[str, float]] = {}
    for query, judged in ratings.items():
        for id_, rating in judged.items():
            with suppress(InputError):  # `ssi train` rejects the line of qrels.tsv, and counts it
                grades.setdefault(query, {})[id_] = parse_grade(rating)
    relevant = sorted(query for query, judged in grades.items() if any(is_relevant(grade) for grade in judged.values()))
    asked = relevant[:: max(1, -(-len(relevant) // JUDGED))]
    weights = dict.fromkeys(paths, 1.0)
    if len(asked) < LEAST_JUDGED or len(paths) < 2:
        return weights, ""

    def ndcg(tried: Mapping[str, float]) -> float:
        fields = [f"{path}^{weight:g}" for path, weight in tried.items()]
        run = {
            query: [hit.id for hit in engine.search(index, {**default_query_body(query, fields), "size": 10}).hits]
            for query in asked
        }
        values = evaluate_run({query: grades[query] for query in asked}, run, ["nDCG@10"])["nDCG@10"]
        return fmean(values[query] for query in asked)

    first = best = ndcg(weights)
    for path in paths:
        for weight in WEIGHTS:
            value = ndcg({**weights, path: weight})
            if value > best:
                best, weights = value, {**weights, path: weight}
    return (
        weights,
        f"nDCG@10 of {len(asked)} judged queries is {best:.3f} with these weights, {first:.3f} with equal ones",
    )


def examined(infos: Sequence[IndexInfo], sample: list[Mapping[str, Any]]) -> tuple[list[Field], dict[str, str]]:
    """Return the text fields of an index in the order of a search body, and the other fields with their reasons."""
    found = dict(pair for info in infos for pair in text_fields(info.properties))
    filled = {target: sources for info in infos for target, sources in copies(info.properties).items()}
    fields = []
    for path, analyzer in found.items():
        field = field_in_sample(path, analyzer, sample)
        if path in filled and not field.share:
            field = field._replace(
                why_not=f"is filled by copy_to from {', '.join(filled[path])}, which are read instead"
            )
        fields.append(field)
    return sorted(fields, key=lambda field: field.order), dict(
        pair for info in infos for pair in other_fields(info.properties)
    )


def judgement_files(ratings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the files of the engine's judgment lists: name → text; none without judgments."""
    if not ratings:
        return {}
    numbers = {query: f"q{number}" for number, query in enumerate(sorted(ratings), 1)}
    rows = ((numbers[query], each, rating) for query in numbers for each, rating in ratings[query].items())
    return {
        "queries.tsv": "".join(f"{key}\t{' '.join(query.split())}\n" for query, key in numbers.items()),
        "qrels.tsv": "".join(f"{key}\t{each}\t{rating}\n" for key, each, rating in rows),
    }


@click.command(
    "init",
    epilog="""\b
Examples:
  ssi init --engine elasticsearch:http://localhost:9200 --index shop
  ssi init --engine opensearch:http://localhost:9200 --index shop --dir shop/
  SSI_ENGINE_API_KEY=... ssi init --engine elasticsearch:https://search:9243 --index shop
""",
)
@common.engine_options
@click.option(
    "--dir", "folder", type=common.FOLDER, default=Path(), show_default="this folder", help="Folder to write to."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@common.json_option
def command(engine_spec: str, index: str, folder: Path, force: bool, as_json: bool) -> None:
    """Examine an existing index, and write the files that the other commands need.

    The command reads the mapping and a sample of the documents; it changes nothing in the engine. It writes ssi.toml,
    which every command reads from the current folder, and body.json, the search body. If the engine holds judgment
    lists, it also writes qrels.tsv and queries.tsv. Finally it prints the next commands to run.
    """
    from reranker.cli.main import CONFIG
    from reranker.engines.bodies import default_query_body
    from reranker.files import write_file

    engine = common.open_engine_of(engine_spec)
    names = engine.index_names(index)
    if not names:
        raise InputError(f"index {index!r} does not exist on {engine.spec}: name an index or alias that does")
    sample = [document.source for document in next(iter(engine.scan(index, batch_size=SAMPLE)), [])[:SAMPLE]]
    if not sample:
        raise InputError(f"index {index!r} on {engine.spec} contains no documents: add documents first")
    infos = [engine.index_info(name) for name in names]
    fields, others = examined(infos, sample)
    read = [field for field in fields if not field.why_not]
    if not read:
        named = ", ".join(field.path for field in fields) or "none"
        raise InputError(
            f"index {index!r} has no text field suitable for training (text fields: {named}): "
            "name the fields with `ssi train --fields`"
        )
    paths, longest = [field.path for field in read], max(read, key=lambda field: field.words)
    default = infos[0].settings.get("index.analysis.analyzer.default.type", "")
    analyzer, note = analyzer_of(longest.analyzer or default, f"{index}/{longest.path}")
    html = {"html": True} if any(field.html for field in read) else {}
    train = {"fields": ",".join(paths), "analyzer": analyzer, **html}
    default_table = {"engine": absolute_spec(engine_spec), "index": index, "model": "models/first", "body": "body.json"}
    of_models = {"models": "models"}
    tables: dict[str, Mapping[str, Any]] = {
        "default": default_table,
        "train": train,
        "serve": of_models,
        "retrain": of_models,
    }
    logged = {name: engine.count(name) if engine.index_names(name) else 0 for name in ("ubi_queries", "ubi_events")}
    ratings = judgements_of(engine)
    weights, tuning = tuned_weights(engine, index, paths, ratings)
    searched = [path if weights[path] == 1 else f"{path}^{weights[path]:g}" for path in paths]
    files = {
        CONFIG.name: toml(tables, note),
        "body.json": json.dumps(default_query_body("{{query}}", searched), indent=2) + "\n",
    }
    files |= judgement_files(ratings)
    folder.mkdir(parents=True, exist_ok=True)
    if there := [name for name in files if (folder / name).exists() and not force]:
        raise ConfigError(f"{there[0]} already exists in {str(folder)!r}: give --force to overwrite it", path=there[0])
    for name, text in files.items():
        write_file(folder / name, text.encode("utf-8"))
    steps = next_steps(engine, min(logged.values()), bool(ratings))
    if as_json:
        common.print_json(
            {
                "documents": engine.count(index),
                "fields": [field._asdict() for field in fields],
                "other_fields": others,
                "weights": weights,
                "analyzer": analyzer,
                "note": note,
                "logged": logged,
                "judged_queries": len(ratings),
                "written": sorted(files),
                "next": steps,
            }
        )
        return
    console = common.out()
    console.print(f"{engine.count(index):,} documents in {index}; sample of {len(sample):,}")
    _print_fields(fields, others)
    console.print(f"analyzer {analyzer}{f': {note}' if note else ''}", soft_wrap=True)
    if tuning:
        console.print(f"weights  {', '.join(searched)}: {tuning}", soft_wrap=True)
    console.print(f"UBI      {logged['ubi_queries']:,} logged searches and {logged['ubi_events']:,} logged events")
    console.print(f"judged   {len(ratings):,} queries in the engine's judgment lists")
    console.print(f"written  {', '.join(str(folder / name) for name in files)}\nnext:", soft_wrap=True)
    for step in steps:
        console.print(f"  {step}", soft_wrap=True)


def _print_fields(fields: Sequence[Field], others: Mapping[str, str]) -> None:
    table = common.plain_table("field", "filled", "words", "", numbers=(1, 2))
    for field in fields:
        use = field.why_not or f"used ({field.role})"
        table.add_row(field.path, f"{field.share:.0%}", f"{field.words:,.1f}", use)
    for path, reason in others.items():
        table.add_row(path, "", "", reason)
    common.out().print(table)


def toml(tables: Mapping[str, Mapping[str, Any]], note: str) -> str:
    """Return tables of strings and booleans as TOML. JSON's strings and booleans are valid TOML."""
    lines = ["# Written by `ssi init`. Keys are options (`ssi COMMAND --help`); paths are relative to this folder."]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        lines += [f"# {note}"] if note and name == "train" else []
    return "\n".join(lines) + "\n"


def next_steps(engine: Engine, n_logged: int, judged: bool) -> list[str]:
    """Return the next commands to run. They depend on the available training data: judgments, clicks or links."""
    if judged:
        train = ["ssi train --qrels qrels.tsv --query-file queries.tsv"]
        fit = ["ssi calibrate --qrels other-qrels.tsv --query-file other-queries.tsv    # queries not trained on"]
    elif n_logged:
        train = [
            f"ssi clicks import --engine {engine.spec} --log clicks/",
            "ssi clicks doctor clicks/",
            "ssi clicks pairs clicks/ --out pairs.parquet",
            "ssi train --pairs pairs.parquet",
        ]
        fit = []
    else:
        train = ["ssi train --links links.tsv    # or --qrels qrels.tsv --query-file queries.tsv"]
        fit = ["ssi calibrate --qrels qrels.tsv --query-file queries.tsv    # if you have judgments"]
    serve = "ssi serve" if engine.in_process else "ssi serve --proxy --port 9201    # optionally with --shadow first"
    return [*train, "ssi revectorize", "ssi promote", *fit, 'ssi search "..."', serve]
