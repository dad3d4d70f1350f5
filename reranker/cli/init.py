"""``ssi init``: what a live index holds, as the configuration file and the search body to begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click

from reranker.cli import common
from reranker.engines import Engine, absolute_spec
from reranker.errors import ConfigError, InputError

SAMPLE = 500
"""Documents that are looked at."""
MIN_SHARE = 0.05
"""Share of these that must have text in a field for it to be read."""
TEXT_TYPES = ("text", "match_only_text", "search_as_you_type")
PLAIN_ANALYZERS = ("default", "standard", "simple", "whitespace", "stop")
JUDGEMENTS = "search-relevance-judgment"
"""Where OpenSearch's Search Relevance Workbench keeps its judgement lists."""


class Field(NamedTuple):
    """A text field of the mapping, and what the documents of the sample hold in it.

    ``share`` of them have text there, of ``words`` words on average; ``why_not`` says why it is not read, or nothing.
    """

    path: str
    analyzer: str
    share: float
    words: float
    html: bool
    why_not: str


def text_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and analyzer of the text fields of a mapping, those of objects too, without our own."""
    from reranker.engines.vectors import FIELD_PREFIX

    for name, definition in sorted(properties.items()):
        path = f"{prefix}{name}"
        if path.startswith(FIELD_PREFIX) or definition.get("type") == "nested":
            continue
        if definition.get("type") in TEXT_TYPES and definition.get("index", True):
            yield path, str(definition.get("analyzer", ""))
        yield from text_fields(definition.get("properties") or {}, f"{path}.")


def look(path: str, analyzer: str, sample: list[Mapping[str, Any]]) -> Field:
    """Return what a sample of documents holds in a field."""
    from reranker.text.analyzers import words
    from reranker.text.view import TextView, strip_html

    view = TextView.parse([path])
    texts = [text for source in sample if (text := view.texts(source)[0].strip())]
    html = sum(strip_html(text) != text for text in texts) > len(texts) / 2
    n_words = fmean(len(words(text)) for text in texts) if texts else 0.0
    share = len(texts) / len(sample)
    why_not = ""
    if share < MIN_SHARE:
        why_not = "hardly ever filled"
    elif sum("://" in text or text.startswith("/") for text in texts) > len(texts) / 2:
        why_not = "holds addresses"
    elif sum(" " not in text and any(map(str.isdigit, text)) for text in texts) > len(texts) / 2:
        why_not = "holds codes"
    elif len(texts) > 1 and len(set(texts)) == 1:
        why_not = "says the same of every document"
    return Field(path, analyzer, share, n_words, html, why_not)


def analyzer_of(name: str, where: str) -> tuple[str, str]:
    """Return the ``--analyzer`` nearest to an engine's, and what to know of it; ``where`` is INDEX/FIELD."""
    from reranker.text.analyzers import STEMMERS

    if name in STEMMERS:
        return name, ""
    if name.startswith("kuromoji"):
        return "japanese", "needs the extra `japanese`"
    if name and name not in PLAIN_ANALYZERS:
        return "auto", f"the engine cuts words by its own chain {name!r}: engine:{where} takes exactly these, from it"
    return "auto", ""


def judgements_of(engine: Engine) -> dict[str, dict[str, str]]:
    """Return query text → document id → rating of the engine's judgement lists; of several, the last one counts."""
    ratings: dict[str, dict[str, str]] = {}
    for batch in engine.scan(JUDGEMENTS) if engine.index_names(JUDGEMENTS) else ():
        for judged in (query for document in batch for query in document.source.get("judgmentRatings") or ()):
            of_query = ratings.setdefault(str(judged.get("query")), {})
            of_query |= {str(one.get("docId")): str(one.get("rating")) for one in judged.get("ratings") or ()}
    return ratings


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
@click.option("--force", is_flag=True, help="Write over the files of an earlier call.")
@common.json_option
def command(engine_spec: str, index: str, folder: Path, force: bool, as_json: bool) -> None:
    """Look at an index that is there, and write what the other commands need to begin.

    Reads the mapping and a sample of the documents; nothing in the engine is changed. Writes ssi.toml, which every
    command reads from the folder it is called in, body.json, the search body, and, where the engine keeps judgement
    lists, qrels.tsv and queries.tsv. Says which commands come next.
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
        raise InputError(f"index {index!r} on {engine.spec} holds no document: fill it first")
    infos = [engine.index_info(name) for name in names]
    found = dict(pair for info in infos for pair in text_fields(info.properties))
    fields = sorted((look(path, name, sample) for path, name in found.items()), key=lambda field: field.words)
    read = [field for field in fields if not field.why_not]
    if not read:
        raise InputError(
            f"index {index!r} has no text field to learn from ({', '.join(found) or 'none in the mapping'}): name the "
            "fields with `ssi train --fields`"
        )
    paths, longest = [field.path for field in read], read[-1]
    default = infos[0].settings.get("index.analysis.analyzer.default.type", "")
    analyzer, note = analyzer_of(longest.analyzer or default, f"{names[0]}/{longest.path}")
    html = {"html": True} if any(field.html for field in read) else {}
    train = {"fields": ",".join(paths), "analyzer": analyzer, **html}
    default_table = {"engine": absolute_spec(engine_spec), "index": index, "model": "model", "body": "body.json"}
    tables: dict[str, Mapping[str, Any]] = {"default": default_table, "train": train}
    logged = {name: engine.count(name) if engine.index_names(name) else 0 for name in ("ubi_queries", "ubi_events")}
    ratings = judgements_of(engine)
    files = {
        CONFIG.name: toml(tables, note),
        "body.json": json.dumps(default_query_body("{{query}}", paths), indent=2) + "\n",
    }
    if ratings:
        numbers = {query: f"q{number}" for number, query in enumerate(sorted(ratings), 1)}
        files["queries.tsv"] = "".join(f"{key}\t{' '.join(query.split())}\n" for query, key in numbers.items())
        rows = ((numbers[query], each, rating) for query in numbers for each, rating in ratings[query].items())
        files["qrels.tsv"] = "".join(f"{key}\t{each}\t{rating}\n" for key, each, rating in rows)
    folder.mkdir(parents=True, exist_ok=True)
    if there := [name for name in files if (folder / name).exists() and not force]:
        raise ConfigError(f"{there[0]} is there already in {str(folder)!r}: --force writes over it", path=there[0])
    for name, text in files.items():
        write_file(folder / name, text.encode("utf-8"))
    steps = next_steps(engine, min(logged.values()), bool(ratings))
    if as_json:
        common.print_json(
            {
                "documents": engine.count(index),
                "fields": [field._asdict() for field in fields],
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
    console.print(f"{engine.count(index):,} documents in {index}; looked at {len(sample):,}")
    table = common.plain_table("field", "filled", "words", "", numbers=(1, 2))
    for field in fields:
        table.add_row(field.path, f"{field.share:.0%}", f"{field.words:,.1f}", field.why_not or "read")
    console.print(table)
    console.print(f"analyzer {analyzer}{f': {note}' if note else ''}", soft_wrap=True)
    console.print(f"UBI      {logged['ubi_queries']:,} searches and {logged['ubi_events']:,} events are logged")
    console.print(f"judged   {len(ratings):,} queries in the engine's judgement lists")
    console.print(f"written  {', '.join(str(folder / name) for name in files)}\nnext:", soft_wrap=True)
    for step in steps:
        console.print(f"  {step}", soft_wrap=True)


def toml(tables: Mapping[str, Mapping[str, Any]], note: str) -> str:
    """Return tables of texts and booleans as TOML; JSON's texts and booleans are TOML's."""
    lines = ["# Written by `ssi init`: keys are options (`ssi COMMAND --help`); paths count from this folder."]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        lines += [f"# {note}"] if note and name == "train" else []
    return "\n".join(lines) + "\n"


def next_steps(engine: Engine, n_logged: int, judged: bool) -> list[str]:
    """Return the commands that come next, by what there is to learn from."""
    if judged:
        train = ["ssi train --qrels qrels.tsv --query-file queries.tsv"]
        fit = ["ssi calibrate --qrels qrels.tsv --query-file queries.tsv"]
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
        fit = ["ssi calibrate --qrels qrels.tsv --query-file queries.tsv    # where you have judgements"]
    serve = "ssi serve" if engine.in_process else "ssi serve --proxy --port 9201    # with --shadow first, if you like"
    return [*train, "ssi revectorize", *fit, 'ssi search "..."', serve]
